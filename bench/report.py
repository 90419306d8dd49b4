"""A result as text: where it was made, one line a row, the bars."""
from bars import bars
from competitors import LIMITS, ONE_THREAD_LIMIT, PEERS
from paired import Ratio, Row

DISTURBED = 0.03  # share of the cores that others may take before the numbers mean little


def spread(r: Ratio | None, complaint: str | None = None) -> str:
    if complaint:
        return "wrong"
    return f"{r.median:.2f} [{r.low:.2f}–{r.high:.2f}]" if r else "–"


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.{3 if seconds < 0.01 else 1}f}"


def line(row: Row) -> list[str]:
    ours = row.median("rootdk")
    if ours is None:
        return [row.name, "wrong: " + str(row.complaint("rootdk"))]
    one_thread, stats = row.times_faster("rootdk-1-thread"), row.times_faster("rootdk-no-stats")
    return [row.name, duration(ours), f"{row.work / ours / 1e9:.1f} {'GB/s' if row.memory else 'GF/s'}", f"{row.of_limit().median:.2f}",
            *(spread(row.times_faster(peer.key), row.complaint(peer.key)) for peer in PEERS),
            f"{1 / stats.median:.3f}" if stats else "–", f"{one_thread.median:.2f}" if one_thread else "–", str(len(row.seconds("rootdk")))]


def columns(lines: list[list[str]], left: tuple[int, ...] = (0,)) -> str:
    """Columns `left` aligned to the left, the others to the right; a line that lacks cells has no say in the widths."""
    full = [cells for cells in lines if len(cells) == len(lines[0])]
    widths = [max(map(len, column)) for column in zip(*full)]
    sides = ["<" if i in left else ">" for i in range(len(widths))]
    place = lambda cells: [f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths)]
    return "\n".join("  ".join(place(cells)).rstrip() for cells in lines)


def limits(rows: list[Row]) -> list[str]:
    """The medians of all rounds of all rows."""
    lines = []
    for limit in (*LIMITS, ONE_THREAD_LIMIT):
        rates = sorted(row.record["competitors"][limit.key]["work"] / seconds / 1e9 for row in rows for seconds in row.seconds(limit.key) or [] if seconds)
        if rates:
            low, median, high = (rates[int(len(rates) * part)] for part in (0.1, 0.5, 0.9))
            lines.append(f"{limit.title}: {median:.1f} [{low:.1f}–{high:.1f}] {'GF/s' if limit.options['limit'] == 'fma' else 'GB/s'}")
    return lines


def text(result: dict) -> str:
    rows = [Row(record) for record in result["rows"]]
    machine = result["machine"]
    head = [f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {' '.join(machine['instruction_sets'])}",
            f"{100 * result['elsewhere']:.0f} % of the cores' time in timed rounds went elsewhere" + (": DISTURBED, run it again" if result["elsewhere"] > DISTURBED else ""),
            f"rootdk {machine['commit']}, {machine['date']}; " + ", ".join(f"{name} {version}" for name, version in result["versions"].items() if name != "rootdk")]
    titles = ["", "ms", "rate", "of limit", *(f"× {peer.title}" for peer in PEERS), "stats", "1→2", "pairs"]
    table = columns([titles, *map(line, rows)])
    verdicts = columns([["bar", "value", "floor", "goal", "", "row"],
                        *([bar.name, f"{bar.value:.2f}", f"{bar.floor:.2f}", f"{bar.goal:.2f}", bar.verdict(), bar.row] for bar in bars(rows))], left=(0, 4, 5))
    notes = ("rate: multiply and add of visible pairs (4·d forward, 10·d backward), or bytes of K and V read once. of limit: of the multiply-add peak,\n"
             "or of read bandwidth, measured in the same rounds. × peer: the peer's seconds over rootdk's, median of the rounds [10 %–90 %].\n"
             "stats: seconds with statistics (rootdk's default, and what is compared) over seconds without. wrong: failed the check, not timed.")
    complaints = [f"{row.name}: {key}: {entry['complaint']}" for row in rows for key, entry in row.record["competitors"].items() if entry.get("complaint")]
    return "\n\n".join(part for part in ("\n".join(head), "\n".join(limits(rows)), table, notes, "\n".join(complaints), verdicts) if part)
