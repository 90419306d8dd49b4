"""What nobody should be kept from: axe-core's rules, and those of page_rules.py."""

import page_rules
from axe_playwright_python.sync_playwright import Axe

ALL = {"resultTypes": ["violations"]}
CONTRAST = {**ALL, "runOnly": {"type": "rule", "values": ["color-contrast"]}}


def findings(page, axe=ALL):
    """What breaks a rule, in words; nothing is what is wanted. axe: options of axe-core's, None to go without it."""
    out = list(page_rules.broken(page.evaluate))
    for violation in Axe().run(page, options=axe).response["violations"] if axe else []:
        for node in violation["nodes"]:
            out.append(f"{violation['id']}: {node['html'][:160]} ({node.get('failureSummary', '')[:200]})")
    return out
