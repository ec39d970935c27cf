"""The measures that several tables show, each named and explained once."""

from pfeddsh.report.table import Column

SEEDS = Column("n", "seeds")
END = Column(
    "everyone at the end", "mean accuracy of everyone present after the last step, %: the measure that decides"
)
LOST = Column("lost > 2 points", "share of existing clients that lost more than 2 points over a step, mean over later "
              "steps, %", digits=1)  # fmt: skip
STEP1 = Column("step 1", "mean accuracy of the first batch after its own step, %")
PA = Column(
    "PA last", "proactive adaptation: accuracy of the last batch minus local-only training, points", signed=True
)
SAMPLED = Column("PA last, 3+ visits", "the same over newcomers sampled at least three times: whether a client is "
                 "sampled at all is the draw's doing; left out where all were, points", signed=True)  # fmt: skip
ZERO_SHOT = Column("zero-shot last", "PA of the last batch before any round of its step, for methods that can serve "
                   "newcomers at once, points", signed=True)  # fmt: skip
RI = Column("RI last", "retroactive improvement: change of existing clients over the last step, points", signed=True)
RI_TOTAL = Column("RI total", "change of the first batch over the whole run, points", signed=True)
RI_TOTAL_BARE = Column("RI total no guard", "the same, had clients taken every offer, points", signed=True)
PAPER_PA = Column("paper PA", "as printed in the paper, five seeds", signed=True)
PAPER_RI = Column("paper RI", "as printed in the paper, five seeds", signed=True)
WORSE = Column("% worse", "share of existing clients, over all steps, that lost anything", digits=1)
