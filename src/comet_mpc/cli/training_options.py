"""The options of the commands that make and measure models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from comet_mpc.models.checkpoint import USUAL_RULE, FormRuleName, RuleName
from comet_mpc.models.heads import Kind

AnyRule = Literal[RuleName, "newton"]
_BY_ROOT = "Approximation rule for activations and attention scores"
_OTHER_RULE = "Another rule of activations and scores than the model's"

# of unify

_ANY_MODEL = "Directory, or name on the hub, of a (Distil)BERT, RoBERTa, MPNet, ViT or DINOv2 model."
Source = Annotated[str, Argument(metavar="MODEL", help=_ANY_MODEL)]
Checkpoint = Annotated[Path, Argument(help="Directory for the Comet checkpoint.")]
_FORMS = "certified (the one that can be served), paper (research only) or unmodified."
FormOption = Annotated[Literal["certified", "paper", "unmodified"], Option(help=_FORMS)]
HeadTask = Annotated[str | None, Option(metavar="NAME", help="Make a new head for the labels of this GLUE task.")]
_LABELS = "Make a new head for these labels, separated by commas."
HeadLabels = Annotated[str | None, Option(metavar="A,B,…", help=_LABELS)]
_HEAD = "What to make of a text: a label, a label for every token, or an embedding."
HeadKind = Annotated[Kind | None, Option(help=_HEAD)]
_FORM_RULE = (
    f"{_BY_ROOT}: fitted, near, a polynomial root, or minimax (steps of 1/sqrt). Default: {USUAL_RULE} in the "
    "certified form."
)
FormRule = Annotated[FormRuleName | None, Option(help=_FORM_RULE)]
FormSteps = Annotated[int | None, Option(min=1, max=16, help="Minimax steps of 1/sqrt; 4 in the paper's form.")]
Activation = Annotated[Literal["gelu", "smu"] | None, Option(help="Other activation than the form's.")]
Attention = Annotated[Literal["softmax", "relu", "smu"] | None, Option(help="Other attention than the form's.")]
Alpha = Annotated[float | None, Option(help="α of smu: its slope on the negative side.")]
Mu = Annotated[float | None, Option(help="μ of smu: how smooth the activation is.")]
AttentionMu = Annotated[float | None, Option(help="μ of attention (s-Softmax*: 0.5).")]
Floor = Annotated[float | None, Option(help="Added to the denominators of attention (Softmax*: 1).")]
Power = Annotated[int | None, Option(help="Power of the scores in attention: 1 or 2.")]
Trainable = Annotated[bool | None, Option(help="Train α and μ, layer by layer.")]
_POOLER = "tanh, or algebraic: x/sqrt(1 + x²), which can be computed privately."
PoolerOption = Annotated[Literal["tanh", "algebraic"] | None, Option(help=_POOLER)]
_IMAGE_SIZE = "Side of the images that a vision model takes (default: its own). Smaller costs less."
ImageSize = Annotated[int | None, Option(metavar="PIXELS", min=1, help=_IMAGE_SIZE)]
HeadSeed = Annotated[int, Option(help="For the random weights of a new head.")]

# of calibrate

Calibrated = Annotated[Path, Argument(help="A Comet checkpoint. Its configuration is rewritten.")]
_MARGIN = "Without a certificate, a range ends at so many times the largest value seen."
Margin = Annotated[float, Option(min=1.0, help=_MARGIN)]
Picture = Annotated[Path | None, Option(metavar="FILE", help="Draw what was seen and the ranges (.png, .svg or .pdf).")]

# of finetune

Start = Annotated[Path, Argument(help="The Comet checkpoint to start from (see `comet unify`).")]
Best = Annotated[Path, Argument(help="Directory for the best checkpoint. Rerun the command to resume.")]
Teacher = Annotated[Path | None, Option(metavar="DIR", help="A Comet or Hugging Face classifier to learn from.")]
Epochs = Annotated[float, Option(help="Passes over the training rows.")]
UpdateRows = Annotated[int, Option(min=1, help="Rows per update.")]
Rate = Annotated[float, Option(help="The largest learning rate.")]
Seed = Annotated[int, Option(help="For the order of the rows and for dropout.")]
_HELD_OUT = "Training rows that only choose the best checkpoint (a tenth, 1000 at most). 0: dev.tsv does."
HeldOut = Annotated[int | None, Option(min=0, help=_HELD_OUT)]
Length = Annotated[int, Option(min=0, help="Cut texts after so many tokens (0: as is usual for the task).")]
_TRAINED_RULE = (
    f"{_OTHER_RULE}. newton (from the paper's constant) is for experiments, like fewer than two steps: "
    "what comes out cannot be served."
)
TrainedRule = Annotated[AnyRule | None, Option(help=_TRAINED_RULE)]
OtherSteps = Annotated[
    int | None, Option(min=0, max=16, help="Other steps of activations and scores than the model's.")
]
Dropout = Annotated[float, Option(help="With a teacher, 0 is best.")]
LabelWeight = Annotated[float, Option(min=0.0, help="How much labels count. 0: learn from the teacher alone.")]
HiddenWeight = Annotated[float, Option(help="How much the teacher's hidden states count.")]
LogitWeight = Annotated[float, Option(help="How much the teacher's logits count.")]
Temperature = Annotated[float, Option(help="Of the teacher's logits: more makes them softer.")]
_EMBEDDING_RATE = "Learning rate of embeddings, relative to --rate. 0 leaves them as they are."
EmbeddingRate = Annotated[float, Option(help=_EMBEDDING_RATE)]
_EVALUATIONS = "Evaluations per epoch. A run that stopped continues from the last one."
Evaluations = Annotated[int, Option(min=1, help=_EVALUATIONS)]
Fit = Annotated[bool, Option(help="Fit every layer to the teacher's first, if both are the same encoder.")]
_FIT_TOKENS = "Tokens of the training texts that layers are fitted to. More start closer."
FitTokens = Annotated[int, Option(min=1, help=_FIT_TOKENS)]
Exact = Annotated[bool, Option(help="Train with exact functions, not with the protocol's steps.")]

# of adopt

_TRAINED = "Directory, or name on the hub, of a trained Hugging Face model."
Adopted = Annotated[str, Argument(metavar="MODEL", help=_TRAINED)]
ToServe = Annotated[Path, Argument(help="Directory for the model to serve. Rerun the command to resume.")]
_ROWS = (
    "Your rows: a .csv or .tsv file with a header, a .txt file of plain texts, or a directory with train.tsv and "
    "dev.tsv; images for a model of images. Without labels, the model itself says what is right. A model that writes "
    "needs none: it writes texts itself."
)
AnyData = Annotated[Path | None, Option(metavar="PATH", help=_ROWS)]
_TEXTS = "The column with the texts. Give two for pairs."
TextColumns = Annotated[list[str] | None, Option(metavar="NAME", help=_TEXTS)]
LabelColumn = Annotated[str | None, Option(metavar="NAME", help="The column with the labels or scores.")]
Plain = Annotated[bool, Option("--plain", help="Use no labels, also where there are some.")]
LabelNames = Annotated[str | None, Option(metavar="A,B,…", help="Names for the model's labels, in its own order.")]
_OTHER_HEAD = f"{_HEAD} Default: what it was made for. An encoder without a head gives embeddings."
AdoptedHead = Annotated[Kind | None, Option(help=_OTHER_HEAD)]
_PASSES = "Train for so many passes over the rows. 0: only if needed, and as many as a set of this size needs."
Passes = Annotated[float, Option(min=0.0, help=_PASSES)]
_TRAIN = "Train the fitted model, or do not. Default: if it is less than 98 % near the original, to be nearer."
Trained = Annotated[bool | None, Option("--train/--no-train", help=_TRAIN)]
_FITTED_TOKENS = (
    "Tokens that functions and layers are fitted to. Default: 20,000 of the rows, or 60,000 for a model that writes."
)
FittedTokens = Annotated[int | None, Option("--fit-tokens", min=1, help=_FITTED_TOKENS)]
_ADOPTED_RULE = (
    f"{_BY_ROOT}: fitted, near, a polynomial root, or minimax. Default: fitted, or near if that is less than 98 % "
    "near the original."
)
AdoptedRule = Annotated[FormRuleName | None, Option(help=_ADOPTED_RULE)]
_ADOPTED_STEPS = "Minimax steps of 1/sqrt in its place."
AdoptedSteps = Annotated[int | None, Option(min=1, max=16, help=_ADOPTED_STEPS)]
AdoptedLength = Annotated[int, Option(min=0, help="Cut texts after so many tokens (0: as the model does).")]
RowSeed = Annotated[int, Option(help="For the order of the rows.")]
_CONTEXT = "For a model that writes: tokens of a prompt and its text together (0: 256, or as many as it takes)."
Context = Annotated[int, Option(min=0, help=_CONTEXT)]
Estimate = Annotated[bool, Option("--estimate", help="Only say how long it will take.")]

# of eval

Evaluated = Annotated[Path, Argument(help="A Comet checkpoint, or a Hugging Face classifier.")]
_MODES = "exact functions, the protocol's steps, or served (steps within the model's ranges)."
ModeOption = Annotated[Literal["exact", "steps", "served"], Option(help=_MODES)]
_EVALUATED = f"{_OTHER_RULE}: minimax, a polynomial of that degree, or newton (Newton steps from one constant)."
EvaluatedRule = Annotated[AnyRule | None, Option(help=_EVALUATED)]
_SECURE = "Inside the protocol, between processes on this machine. Needs no torch."
Secure = Annotated[bool, Option("--secure", help=_SECURE)]
_CLUSTER = (
    "With --secure: on the nodes of this Ray cluster, a server and a client on each. The model is a path on every node."
)
Cluster = Annotated[str | None, Option(metavar="HOST:PORT|auto", help=_CLUSTER)]
Twin = Annotated[bool, Option("--twin", help="In fixed point, as served, but in the clear. Needs no torch.")]
