"""Live onboarding: the federation loop over Flower, for months, with clients that come when they come."""
