"""`comet keys`: the certificates with which the parties know each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer

from comet_mpc.cli.options import JsonFile, group, option
from comet_mpc.cli.tables import report, table
from comet_mpc.net.authority import Issued, check_name_free, issue, issued, make_authority, renew, revoke
from comet_mpc.net.identity import REVOKED, Role
from comet_mpc.units import counted

keys = group("Make, renew and revoke certificates, with which the parties know each other.")

_LOCAL = ("localhost", "127.0.0.1", "::1")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The authority's directory, with authority.key.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The party's name: of its files, and in its certificate.")]
Hosts = Annotated[
    list[str] | None, option("Name or address of the machine of a server or dealer. May be given again.", flag="--host")
]
Days = Annotated[int, option("How long the certificate is valid.", min=1, max=3650)]


@keys.command("make")
def make_keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the files.")],
    host: Hosts = None,
    force: Annotated[bool, option("Overwrite files that exist.", flag="--force")] = False,
) -> None:
    """Make an authority, and certificates for a client, a server and a dealer.

    Give each party authority.pem and its own .pem and .key. Keep authority.key away from all of them.
    """
    make_authority(directory, "Comet authority", force=force)
    for role in get_args(Role):
        made = issue(directory, role, role, () if role == "client" else host or _LOCAL, force=force)
        typer.echo(f"for the {role}: {made.certificate} and {made.key}")
    typer.echo(f"for all of them: {directory / 'authority.pem'} (keep authority.key to yourself)")


@keys.command("issue")
def issue_key(
    directory: Directory,
    name: Name,
    role: Annotated[Role, option("What the party is.")] = "client",
    host: Hosts = None,
    days: Days = 365,
) -> None:
    """Issue a certificate to one more party.

    Quotas, bundles and logs go by the name, so give every client one of its own.
    """
    check_name_free(directory, name)
    made = issue(directory, name, role, () if role == "client" else host or _LOCAL, days=days)
    typer.echo(f"for {name}: {made.certificate}, {made.key} and {made.authority}")


@keys.command("renew")
def renew_key(
    directory: Directory,
    name: Name,
    days: Days = 365,
    revoke_old: Annotated[
        bool, option("The certificates from before count no more: the key was lost.", flag="--revoke-old")
    ] = False,
) -> None:
    """Issue a new certificate, with a new key, to a party that has one: same name, role and hosts."""
    made = renew(directory, name, days=days)
    typer.echo(f"for {name}: {made.certificate} and {made.key}")
    if revoke_old:
        _tell(directory, revoke(directory, name, but_last=True))


@keys.command("revoke")
def revoke_key(directory: Directory, name: Name) -> None:
    """Revoke all certificates of a party.

    Copy the list, revoked.pem, to the keys of every server and dealer. They read it within a second, without a
    restart, and end the connections of those who are on it.
    """
    _tell(directory, revoke(directory, name))


@keys.command("list")
def list_keys(directory: Directory, json: JsonFile = None) -> None:
    """List every certificate that was issued: name, role, validity.

    Those of an authority that another one has replaced are marked: nobody accepts them.
    """
    entries = issued(directory)
    records = [{**msgspec.to_builtins(entry), "state": entry.state()} for entry in entries]
    rows = [
        (one.name, one.role, one.state(), f"{one.begins:%Y-%m-%d}", f"{one.ends:%Y-%m-%d}", one.serial[:8])
        for one in entries
    ]
    columns = ("name", "role", "state", "from", "until", "serial")
    report(records, json, table("The certificates", columns, rows, left=3))
    old = {one.name for one in entries if one.old_authority} - {one.name for one in entries if not one.old_authority}
    if old and str(json) != "-":
        typer.echo(
            f"{', '.join(sorted(old))}: issued by an authority that was replaced, so nobody accepts it; "
            "`comet keys renew` issues a new one"
        )


def _tell(directory: Path, revoked: list[Issued]) -> None:
    typer.echo(f"revoked {counted(len(revoked), 'certificate')} of {revoked[0].name}")
    typer.echo(f"copy {directory / REVOKED} to the keys of every server and dealer")
