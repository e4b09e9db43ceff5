"""The two things this package says when something is wrong with what it was given or what it found."""


class InputError(ValueError):
    """Input that cannot be used; the message names what was expected, what came, and where."""


class DoseWarning(UserWarning):
    """Something the user should know before trusting a result; the result itself is valid."""
