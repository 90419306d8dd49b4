"""What nobody should be kept from: axe-core's rules, and those of page_rules.py."""

import page_rules
from axe_playwright_python.sync_playwright import Axe

ALL = {"resultTypes": ["violations"]}
CONTRAST = {**ALL, "runOnly": {"type": "rule", "values": ["color-contrast"]}}


# axe-core looks at nothing in a part that is folded, but takes seconds to find that out of thousands of cells: they are
# taken out for as long as it looks.
FOLDED = """() => {
  globalThis.folded = [];
  for (const details of document.querySelectorAll("details:not([open])"))
    for (const node of [...details.children])
      if (node.tagName !== "SUMMARY" && node.querySelector("table")) {
        const place = document.createComment("");
        node.replaceWith(place);
        folded.push([place, node]);
      }
}"""
UNFOLDED = "() => folded.reverse().forEach(([place, node]) => place.replaceWith(node))"


def violations(page, options):
    page.evaluate(FOLDED)
    found = Axe().run(page, options=options).response["violations"]
    page.evaluate(UNFOLDED)
    return found


def findings(page, axe=ALL):
    """What breaks a rule, in words; nothing is what is wanted. axe: options of axe-core's, None to go without it."""
    out = list(page_rules.broken(page.evaluate))
    for violation in violations(page, axe) if axe else []:
        for node in violation["nodes"]:
            out.append(f"{violation['id']}: {node['html'][:160]} ({node.get('failureSummary', '')[:200]})")
    return out
