"""Live onboarding on Flower: a federation that runs for months and takes new clients as they come."""
