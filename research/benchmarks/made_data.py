"""Small labelled data sets, made of patterns: for trials of `comet adopt` where no data is at hand.

    python research/benchmarks/made_data.py OUT

writes OUT/spam.csv (300 messages, ham and spam) and OUT/names/train.tsv and dev.tsv (sentences in which persons, places
and organisations are tagged). The same files every time. They say nothing about real messages.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

_PEOPLE = "Anna Bob Carla David Elena Farid Grace Hugo Ines Jonas Kofi Lena Marta Nils Olga Pedro Rosa Sven Tara Uwe"
_FAMILIES = "Adams Becker Castro Dubois Eriksen Fischer Garcia Huang Ivanova Jensen Keller Larsen Moreau Novak Okoye"
_PLACES = "Lisbon Oslo Nairobi Lima Hanoi Graz Turin Quito Dublin Osaka Bergen Malaga Tunis Perth Leeds"
_FIRMS = "Northwind Acme Globex Initech Umbra Contoso Vertex Solano Bluefin Kestrel Orion Halcyon"
_KINDS = "Bank Energy Foods Systems Airlines Insurance Motors Labs"

_HAM = (
    "Can we move our meeting with {person} to {time}?",
    "I will be in {place} on {day}, do you want to have {meal} together?",
    "{person} sent the {thing}, please have a look before {day}",
    "Thanks for the {thing}, I will read it on the train to {place}",
    "Don't forget to buy {food} on your way home",
    "The children are at {person}'s until {time}, I pick them up after work",
    "Sorry, I am late, the bus to {place} did not come. See you at {time}",
    "Happy birthday {person}! Hope you have a lovely {day}",
    "Is the {thing} for {firm} ready, or shall I tell them {day}?",
    "Mum says {meal} is at {time} and you should bring {food}",
    "I left my keys at the office, are you home at {time}?",
    "Could you call the dentist and ask for another date than {day}?",
    "The account of {firm} is in the folder, the prize for the best draft goes to {person}",
    "You have won the bet, so {meal} is on me on {day}, call me when you are free",
)
_SPAM = (
    "Congratulations! You have won a {prize}. Reply {code} to claim it before {day}",
    "URGENT: your {firm} account is locked. Confirm your password at {link}",
    "{prize} for free! Text {code} to {number} now, only until {time}",
    "Cheap loans without questions, cash on {day}. Visit {link}",
    "Dear customer, {firm} owes you {money}. Send your bank details to {link}",
    "Lose 10 kilos until {day} with this secret {food} diet: {link}",
    "You were chosen for a {prize}! Call {number} and say {code}",
    "Final notice: pay {money} or lose your {prize}. Go to {link}",
    "Hot singles in {place} want to meet you. Text {code} to {number}",
    "Work from home and earn {money} a week. No skills needed: {link}",
    "Your parcel waits in {place}. Pay {money} for customs at {link}",
    "Double your {money} in a day with {firm} coins, join at {link}",
    "{person}, your friend asks: is this you in the video? {link}",
    "Meeting of winners on {day}: take your {prize} home, answer {code} at once",
)
_SLOTS = {
    "time": "noon,five o'clock,8 pm,half past six,9:30,ten",
    "day": "Monday,Tuesday,Wednesday,Thursday,Friday,Saturday,Sunday",
    "meal": "lunch,dinner,breakfast,coffee",
    "food": "bread,milk,tomatoes,rice,cheese,apples",
    "thing": "report,contract,slides,budget,letter,invoice,draft",
    "prize": "new phone,luxury cruise,gift card,holiday for two,sports car",
    "code": "WIN,YES,CLAIM,LUCKY,STOP4U",
    "number": "80888,61200,0900 555 010,87131",
    "money": "$500,$2,000,£99,€1,500,$49",
    "link": "win-now.example,secure-login.example,fast-cash.example,get-it.example",
}

_TAGGED = (
    "{PER} flew from {LOC} to {LOC} on {day} .",
    "{ORG} opens an office in {LOC} , said {PER} .",
    "The head of {ORG} , {PER} , lives near {LOC} .",
    "Yesterday {PER} met {PER} in {LOC} to talk about {ORG} .",
    "Shares of {ORG} fell after the news from {LOC} .",
    "{PER} left {ORG} and now works for {ORG} .",
    "It rained in {LOC} , so the match was moved to {day} .",
    "We had {meal} with friends and went home at {time} .",
    "Customers of {ORG} in {LOC} must wait until {day} .",
    "{LOC} is older than {LOC} , but {LOC} is larger .",
    "The {thing} from {PER} came too late .",
    "Nobody at {ORG} had read the {thing} before {day} .",
)


def _filled(pattern: str, draw: random.Random) -> str:
    values = {name: draw.choice(options.split(",")) for name, options in _SLOTS.items()}
    values["money"] = draw.choice(["$500", "$2,000", "£99", "€1,500", "$49"])
    values |= {"person": draw.choice(_PEOPLE.split()), "place": draw.choice(_PLACES.split())}
    return pattern.format(**values, firm=f"{draw.choice(_FIRMS.split())} {draw.choice(_KINDS.split())}")


def _tagged(pattern: str, draw: random.Random) -> tuple[str, str]:
    """Words and their tags."""
    words, tags = [], []
    for word in pattern.split():
        kind = word.strip("{}")
        if kind not in ("PER", "LOC", "ORG"):
            plain = _filled(word, draw).split()
            words += plain
            tags += ["O"] * len(plain)
            continue
        pools = {"PER": (_PEOPLE, _FAMILIES), "LOC": (_PLACES,), "ORG": (_FIRMS, _KINDS)}[kind]
        parts = [draw.choice(pool.split()) for pool in pools[: draw.randint(1, len(pools))]]
        words += parts
        tags += [f"B-{kind}", *[f"I-{kind}"] * (len(parts) - 1)]
    return " ".join(words), " ".join(tags)


def main(out: Path) -> None:
    draw = random.Random(1)
    out.mkdir(parents=True, exist_ok=True)
    messages = [(_filled(draw.choice(patterns), draw), label) for patterns, label in ((_HAM, "ham"), (_SPAM, "spam"))
                for _ in range(150)]  # fmt: skip
    draw.shuffle(messages)
    with (out / "spam.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "label"))
        rows.writerows(messages)
    (out / "names").mkdir(exist_ok=True)
    for split, count in (("train", 400), ("dev", 150)):
        lines = ["\t".join(_tagged(draw.choice(_TAGGED), draw)) for _ in range(count)]
        (out / "names" / f"{split}.tsv").write_text("\n".join(["sentence1\ttags", *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
