"""What methods and their variants are called in the documents. Any run has a name here; this file makes it readable."""

from pfeddsh.report.grouping import REFERENCES, Cell

ORACLES = ("central", "joint")  # what the setting forbids: never the best of a table
CONTROLS = (
    "fedavg-prior", "fedavg-prior-finetune", "fedavg-prior-finetune, finetune_rate=0.0003",
    "fedavg-prior-finetune, existing=guard", "fedavg-prior-finetune, later=frozen", "fedavg-prior, existing=keep",
    "fedavg-prior, existing=guard", "fedavg-prior, later=frozen", "fedavg-prior, later=frozen-head", "fedper-prior",
    "fedper-prior, existing=keep", "fedrep-prior", "fedrep-prior, existing=keep", "ditto-prior",
    "ditto-prior, existing=keep", "local-prior",
)  # fmt: skip  # the simplest methods that could explain what pFedDSH gains: all of them use the prior
RIVALS = (
    "fedavg", "fedper", "fedrep", "fedselect", "pfedhn", "pefll", "odpfl-hn", "fedweit", "fedclass", "hr",
    "pfedhn-embed-only", "pfedhn-local-head", "fedclass-local-head", "hr-local-head",
)  # fmt: skip  # from the literature, and as their authors or we give them parts of their own
NAMES = {
    "fedavg": "FedAvg", "fedper": "FedPer", "fedrep": "FedRep", "fedselect": "FedSelect", "pfedhn": "pFedHN",
    "pfedhn-embed-only": "pFedHN, embeddings only", "pfedhn-local-head": "pFedHN, local head",
    "pefll": "PeFLL", "odpfl-hn": "ODPFL-HN", "fedweit": "FedWeIT", "fedclass": "FedCLASS",
    "fedclass-local-head": "FedCLASS, local head", "hr": "HR", "hr-local-head": "HR, local head",
    "fedavg-finetune": "FedAvg + fine-tuning", "fedavg-prior": "FedAvg + prior",
    "fedavg-prior-finetune": "FedAvg + prior + fine-tuning", "fedper-prior": "FedPer + prior",
    "fedrep-prior": "FedRep + prior", "ditto": "Ditto", "ditto-prior": "Ditto + prior", "pfeddsh": "pFedDSH",
    "pfeddsh-replay": "pFedDSH, replay", "pfeddsh-paper": "pFedDSH as the paper has it",
    "local": "local-only training, the control", "local-prior": "local-only training + prior",
    "central": "one model on pooled data, the ceiling", "joint": "pFedDSH, everyone retrains, an oracle",
}  # fmt: skip
SETTINGS = {
    "existing=guard": "guard", "existing=keep": "existing clients keep theirs", "later=frozen": "frozen after step 1",
    "later=frozen-head": "frozen but for the head", "statistics=fresh": "fresh statistics",
    "prior=false": "no prior", "replay_first=true": "replay after step 1", "every=1": "every visit",
    "finetune_rate=0.0003": "gently",
}  # fmt: skip
SCHEDULES = ("80+20", "80+4x5", "80+10x2", "20+80", "10+9x10")  # the paper's, and those in which most come later
GROWING = ("10+90", "20+4x20")  # two more of the latter, with fewer methods
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet", "sites": "PneumoniaMNIST"}


def named(label: str) -> str:
    """A method and what is unusual about it, such as `fedper, existing=keep`."""
    method, *settings = label.split(", ")
    return ", ".join([NAMES.get(method, method), *(SETTINGS.get(setting, setting) for setting in settings)])


def plain(cell: Cell) -> str:
    return named(cell.label)


def readable(cell: Cell) -> str:
    """The same as a row of a table: pFedDSH bold, oracles and controls in italics."""
    if cell.label == "pfeddsh":
        return f"**{plain(cell)}**"
    return f"*{plain(cell)}*" if cell.variant.method in REFERENCES else plain(cell)
