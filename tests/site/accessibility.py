"""What nobody should be kept from: axe-core's rules, and those of page_rules.py."""

import page_rules
from axe_playwright_python.sync_playwright import Axe


def findings(page):
    """What breaks a rule, in words; nothing is what is wanted."""
    out = list(page_rules.broken(page.evaluate))
    for violation in Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]:
        for node in violation["nodes"]:
            out.append(f"{violation['id']}: {node['html'][:160]} ({node.get('failureSummary', '')[:200]})")
    return out
