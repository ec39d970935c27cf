"""The networks that come with the package: a file each, whose `__all__` names its factories."""
