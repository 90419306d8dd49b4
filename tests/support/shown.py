"""Numbers as a person reads them on a page of ours, held against the exact ones."""

import re
from decimal import Decimal

SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def read(text):
    """What a shown number says, and half of its last digit."""
    share = text.endswith(" %")
    text = text.removesuffix(" %").replace(",", "").replace("−", "-")
    mantissa, _, power = text.partition("×10")
    factor = Decimal(10) ** int(power.translate(SUPERSCRIPTS) or 0) * (Decimal("0.01") if share else 1)
    shown = Decimal(mantissa)
    return shown * factor, Decimal(5).scaleb(shown.as_tuple().exponent - 1) * factor


def typeset(text):
    """Text of the JSON as it is shown: 8.6e-18 becomes 8.6×10⁻¹⁸, but for what is typed, as in constant(1e-05)."""
    power = lambda found: f"{found[1].replace('-', '−')}×10{str(int(found[2])).translate(RAISED)}"
    return re.sub(r"(?<![\w.])(?<!\w\()(-?\d+(?:\.\d+)?)e([-+]?\d+)(?!\w)", power, text)


def says(text, wanted, slack=0):
    """Whether a text says the value to its last digit; slack: by how much more the value may be off."""
    if isinstance(wanted, str):
        return text == typeset(wanted)
    if isinstance(wanted, bool):
        return text == ("yes" if wanted else "no")
    if wanted is None:
        return text == "–"
    shown, half = read(text)
    # toFixed rounds the double, Decimal(wanted) is that double
    return abs(shown - Decimal(wanted)) <= half * Decimal("1.000001") + Decimal(slack)
