"""The measures that several tables show, each named and explained once: one name, one quantity.

Measures are of the whole run unless their name says otherwise; those of the paper's Table 1 are called "last step".
"""

from functools import partial

from pfeddsh.report.table import Column

percent = partial(Column, unit="%")
points = partial(Column, unit="points", signed=True)

SEEDS = Column("n", "seeds")
END = percent("everyone at the end", "mean accuracy of all clients after the last step: the main measure")
LOST = percent(
    "lost > 2 points",
    "share of existing clients that lost more than 2 points over a step, mean over later steps",
    digits=1,
)
FIRST = percent("first batch", "mean accuracy of the first batch after its own step")
CHANGE = points(
    "its change",
    "change of the first batch's accuracy from its own step to the end of the run, without training: RI over all steps",
)
CHANGE_BARE = points("its change, no guard", "the same if clients accepted every offer")
PA = points(
    "PA",
    "proactive adaptation: accuracy of newcomers after their own step minus local-only training with the same visits, "
    "mean over later batches",
)
SAMPLED = points(
    "PA, 3+ visits",
    "the same over newcomers sampled at least three times, because chance decides how often a client is sampled; empty "
    "if all were",
)
ZERO_SHOT = points(
    "zero-shot PA", "PA of newcomers before the first round of their step, for methods that can serve them at once"
)
PA_LAST = points("PA, last step", "as in the paper's Table 1: of the last batch alone")
SAMPLED_LAST = points(
    "PA, last step, 3+ visits", "over clients of the last batch that were sampled at least three times"
)
ZERO_SHOT_LAST = points("zero-shot PA, last step", "of the last batch alone")
RI_LAST = points(
    "RI, last step",
    "retroactive improvement: change of existing clients over the last step, as in the paper's Table 1",
)
PAPER_PA = points("paper PA", "as printed in the paper, five seeds")
PAPER_RI = points("paper RI", "as printed in the paper, five seeds")
WORSE = percent("lost anything", "share of existing clients, over all steps, that lost any accuracy", digits=1)
REPLAY = Column("replay", "per later step", digits=2, unit="s")
