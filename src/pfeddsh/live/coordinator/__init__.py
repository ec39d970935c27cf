"""The coordinator's side of a live federation: who is there, who trains, what is offered, what the operator sees."""
