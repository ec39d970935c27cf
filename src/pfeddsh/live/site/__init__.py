"""A site's side of a live federation: its worker and node, its model, export and prediction."""
