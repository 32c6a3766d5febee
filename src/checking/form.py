"""The form that a probe's evidence has: what was forged, or broken on its way, is told from what a judge must judge."""

from typing import Any

# A type, and nothing derived from it; ANY; [form], a list; {"key": form}, a dict that has these keys; (form, form), one
# of them.
Form = Any
ANY: Form = object()


def misfit(value: Any, form: Form, where: str = "evidence") -> str:
    """Where a value has not the form, and what stands there; "" if it fits."""
    if form is ANY:
        return ""
    if isinstance(form, tuple):
        found = [misfit(value, choice, where) for choice in form]
        return "" if "" in found else found[0]
    if isinstance(form, list):
        if type(value) is not list:
            return f"{where} is a {type(value).__name__}, not a list"
        return next((bad for at, item in enumerate(value) if (bad := misfit(item, form[0], f"{where}[{at}]"))), "")
    if isinstance(form, dict):
        if type(value) is not dict:
            return f"{where} is a {type(value).__name__}, not a dict"
        missing = [key for key in form if key not in value]
        if missing:
            return f"{where} has no {missing[0]!r}"
        return next((bad for key in form if (bad := misfit(value[key], form[key], f"{where}[{key!r}]"))), "")
    return "" if type(value) is form else f"{where} is a {type(value).__name__}, not a {form.__name__}"
