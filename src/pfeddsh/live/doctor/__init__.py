"""`pfeddsh doctor`: what can be checked before, or while, a coordinator or a site runs. It changes nothing."""
