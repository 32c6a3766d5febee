"""Right engines."""

RIGHT = ()
