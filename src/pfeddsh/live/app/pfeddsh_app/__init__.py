"""The app that `pfeddsh serve` gives to Flower."""
