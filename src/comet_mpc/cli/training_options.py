"""The options of the commands that make and measure models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from comet_mpc.models.checkpoint import USUAL_RULE, RuleName
from comet_mpc.models.forms import FormName
from comet_mpc.models.heads import Kind

AnyRule = Literal[RuleName, "newton"]

# of unify

Source = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Directory, or name on the hub, of a (Distil)BERT, RoBERTa or MPNet model."),
]
Checkpoint = Annotated[Path, typer.Argument(help="Directory for the Comet checkpoint.")]
FormOption = Annotated[
    FormName, typer.Option(help="certified (the one that can be served), paper (research only) or unmodified.")
]
HeadTask = Annotated[str | None, typer.Option(metavar="NAME", help="Make a new head for the labels of this GLUE task.")]
HeadLabels = Annotated[
    str | None, typer.Option(metavar="A,B,…", help="Make a new head for these labels, separated by commas.")
]
HeadKind = Annotated[
    Kind | None, typer.Option(help="What to make of a text: a label, a label for every token, or an embedding.")
]
FormRule = Annotated[
    RuleName | None,
    typer.Option(
        help="Approximation rule for activations and attention scores: a polynomial root, or minimax (steps of "
        "1/sqrt). Default: quadratic in the certified form."
    ),
]
FormSteps = Annotated[int | None, typer.Option(min=1, max=16, help="Minimax steps of 1/sqrt; 4 in the paper's form.")]
Activation = Annotated[Literal["gelu", "smu"] | None, typer.Option(help="Other activation than the form's.")]
Attention = Annotated[Literal["softmax", "relu", "smu"] | None, typer.Option(help="Other attention than the form's.")]
Alpha = Annotated[float | None, typer.Option(help="α of smu: its slope on the negative side.")]
Mu = Annotated[float | None, typer.Option(help="μ of smu: how smooth the activation is.")]
AttentionMu = Annotated[float | None, typer.Option(help="μ of attention (s-Softmax*: 0.5).")]
Floor = Annotated[float | None, typer.Option(help="Added to the denominators of attention (Softmax*: 1).")]
Power = Annotated[int | None, typer.Option(help="Power of the scores in attention: 1 or 2.")]
Trainable = Annotated[bool | None, typer.Option(help="Train α and μ, layer by layer.")]
PoolerOption = Annotated[
    Literal["tanh", "algebraic"] | None,
    typer.Option(help="tanh, or algebraic: x/sqrt(1 + x²), which can be computed privately."),
]
HeadSeed = Annotated[int, typer.Option(help="For the random weights of a new head.")]

# of calibrate

Calibrated = Annotated[Path, typer.Argument(help="A Comet checkpoint. Its configuration is rewritten.")]
Margin = Annotated[
    float, typer.Option(min=1.0, help="Without a certificate, a range ends at so many times the largest value seen.")
]
Picture = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw what was seen and the ranges (.png, .svg or .pdf).")
]

# of finetune

Start = Annotated[Path, typer.Argument(help="The Comet checkpoint to start from (see `comet unify`).")]
Best = Annotated[Path, typer.Argument(help="Directory for the best checkpoint. Rerun the command to resume.")]
Teacher = Annotated[Path | None, typer.Option(metavar="DIR", help="A Comet or Hugging Face classifier to learn from.")]
Epochs = Annotated[float, typer.Option(help="Passes over the training rows.")]
UpdateRows = Annotated[int, typer.Option(min=1, help="Rows per update.")]
Rate = Annotated[float, typer.Option(help="The largest learning rate.")]
Seed = Annotated[int, typer.Option(help="For the order of the rows and for dropout.")]
HeldOut = Annotated[
    int | None,
    typer.Option(
        min=0, help="Training rows that only choose the best checkpoint (a tenth, 1000 at most). 0: dev.tsv does."
    ),
]
Length = Annotated[int, typer.Option(min=0, help="Cut texts after so many tokens (0: as is usual for the task).")]
TrainedRule = Annotated[
    AnyRule | None,
    typer.Option(
        help="Another rule of activations and scores than the model's. newton (from the paper's constant) is for "
        "experiments, like fewer than two steps: what comes out cannot be served."
    ),
]
OtherSteps = Annotated[
    int | None, typer.Option(min=0, max=16, help="Other steps of activations and scores than the model's.")
]
Dropout = Annotated[float, typer.Option(help="With a teacher, 0 is best.")]
LabelWeight = Annotated[float, typer.Option(min=0.0, help="How much labels count. 0: learn from the teacher alone.")]
HiddenWeight = Annotated[float, typer.Option(help="How much the teacher's hidden states count.")]
LogitWeight = Annotated[float, typer.Option(help="How much the teacher's logits count.")]
Temperature = Annotated[float, typer.Option(help="Of the teacher's logits: more makes them softer.")]
EmbeddingRate = Annotated[
    float, typer.Option(help="Learning rate of embeddings, relative to --rate. 0 leaves them as they are.")
]
Evaluations = Annotated[
    int, typer.Option(min=1, help="Evaluations per epoch. A run that stopped continues from the last one.")
]
Fit = Annotated[bool, typer.Option(help="Fit every layer to the teacher's first, if both are the same encoder.")]
FitTokens = Annotated[
    int, typer.Option(min=1, help="Tokens of the training texts that layers are fitted to. More start closer.")
]
Exact = Annotated[bool, typer.Option(help="Train with exact functions, not with the protocol's steps.")]

# of adopt

Adopted = Annotated[
    str, typer.Argument(metavar="MODEL", help="Directory, or name on the hub, of a trained Hugging Face model.")
]
ToServe = Annotated[Path, typer.Argument(help="Directory for the model to serve. Rerun the command to resume.")]
AnyData = Annotated[
    Path,
    typer.Option(
        metavar="PATH",
        help="Your rows: a .csv or .tsv file with a header, a .txt file of plain texts, or a directory with "
        "train.tsv and dev.tsv. Without labels, the model itself says what is right.",
    ),
]
TextColumns = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="The column with the texts. Give two for pairs.")
]
LabelColumn = Annotated[str | None, typer.Option(metavar="NAME", help="The column with the labels or scores.")]
Plain = Annotated[bool, typer.Option("--plain", help="Use no labels, also where there are some.")]
LabelNames = Annotated[
    str | None, typer.Option(metavar="A,B,…", help="Names for the model's labels, in its own order.")
]
Passes = Annotated[float, typer.Option(min=0.0, help="Passes over the rows. 0: as many as a set of this size needs.")]
AdoptedRule = Annotated[
    RuleName | None,
    typer.Option(
        help=f"Approximation rule for activations and attention scores. Default: {USUAL_RULE}; for embeddings, --steps."
    ),
]
AdoptedSteps = Annotated[
    int | None, typer.Option(min=1, max=16, help="Steps of 1/sqrt in its place. Default for embeddings: 4.")
]
AdoptedLength = Annotated[int, typer.Option(min=0, help="Cut texts after so many tokens (0: as the model does).")]
RowSeed = Annotated[int, typer.Option(help="For the order of the rows.")]
Estimate = Annotated[bool, typer.Option("--estimate", help="Only say how long it will take.")]

# of eval

Evaluated = Annotated[Path, typer.Argument(help="A Comet checkpoint, or a Hugging Face classifier.")]
ModeOption = Annotated[
    Literal["exact", "steps", "served"],
    typer.Option(help="exact functions, the protocol's steps, or served (steps within the model's ranges)."),
]
EvaluatedRule = Annotated[
    AnyRule | None,
    typer.Option(
        help="Another rule of activations and scores than the model's: minimax, a polynomial of that degree, or "
        "newton (Newton steps from one constant)."
    ),
]
Secure = Annotated[
    bool, typer.Option("--secure", help="Inside the protocol, between processes on this machine. Needs no torch.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        help="With --secure: on the nodes of this Ray cluster, a server and a client on each. The model is a path "
        "on every node.",
    ),
]
Twin = Annotated[bool, typer.Option("--twin", help="In fixed point, as served, but in the clear. Needs no torch.")]
