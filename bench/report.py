"""A result as text: where it was made, one line a row, the bars."""

from bars import bars
from competitors import FULL_STATS, LIMITS, MATERIALISED, NO_STATS, OURS, PEERS, READS, SAMPLED_STATS, STATS
from paired import Ratio, Row, ratio

DISTURBED = 0.03  # share of the cores that others may take before the numbers mean little
COLLECTING = {level: competitor for level, competitor in STATS.items() if competitor is not NO_STATS}


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
    one_thread, limit = row.times_faster("rootdk-1-thread"), row.of_limit()
    return [
        row.name,
        duration(ours),
        f"{row.work / ours / 1e9:.1f} {'GB/s' if row.memory else 'GF/s'}",
        f"{limit.median:.2f}" if limit else "–",
        *(spread(row.times_faster(peer.key), row.complaint(peer.key)) for peer in PEERS),
        *(
            f"{cost.median:.3f}" if (cost := row.times_faster(level.key, NO_STATS.key)) else "–"
            for level in COLLECTING.values()
        ),
        f"{one_thread.median:.2f}" if one_thread else "–",
        str(len(row.seconds("rootdk"))),
    ]


def columns(lines: list[list[str]], left: tuple[int, ...] = (0,)) -> str:
    """Columns `left` aligned to the left, the others to the right; a line that lacks cells has no say in the widths."""
    full = [cells for cells in lines if len(cells) == len(lines[0])]
    widths = [max(map(len, column)) for column in zip(*full)]
    sides = ["<" if i in left else ">" for i in range(len(widths))]
    place = lambda cells: [f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths)]
    return "\n".join("  ".join(place(cells)).rstrip() for cells in lines)


def rate(entries: list[dict]) -> str:
    """In 1e9 a second, of all rounds of all entries."""
    rates = ratio(
        [entry["work"] / 1e9 for entry in entries for _ in entry["seconds"]],
        [seconds for entry in entries for seconds in entry["seconds"]],
    )
    return f"{rates.median:.1f} [{rates.low:.1f}–{rates.high:.1f}]"


def limits(rows: list[Row]) -> list[str]:
    """What the machine did at most, in all rows together."""
    lines = []
    for limit in (limit for limit in LIMITS if limit not in READS):
        entries = [
            entry for row in rows if (entry := row.record["competitors"].get(limit.key)) and entry.get("seconds")
        ]
        if entries:
            lines.append(f"{limit.title}: {rate(entries)} {'GF/s' if limit.options['limit'] == 'fma' else 'GB/s'}")
    return lines


def memory(rows: list[Row]) -> str:
    """How near everyone is to reading its own K and V and doing nothing with them; empty without such rows."""
    share = lambda row, key: f"{spread(r)} of {rate([row.limit(key)])}" if (r := row.of_limit(key)) else "–"
    lines = [[row.name, *(share(row, one.key) for one in (OURS, *PEERS))] for row in rows if row.memory]
    return (
        columns([["of reading the same bytes, GB/s", *(one.title for one in (OURS, *PEERS))], *lines]) if lines else ""
    )


def looking(rows: list[Row]) -> str:
    """What statistics cost over none, and how many times as long it takes to materialise the scores for the full
    ones."""
    lines = [
        [
            row.name,
            *(spread(row.times_faster(one.key, NO_STATS.key)) for one in (OURS, FULL_STATS, SAMPLED_STATS)),
            spread(row.times_faster(MATERIALISED.key, FULL_STATS.key), row.complaint(MATERIALISED.key)),
        ]
        for row in rows
        if row.group == "statistics"
    ]
    return (
        columns(
            [
                ["", "basic over none", "full over none", "full, 1 in 8 blocks, over none", "materialised over full"],
                *lines,
            ]
        )
        if lines
        else ""
    )


def text(result: dict) -> str:
    rows = [Row(record) for record in result["rows"]]
    machine = result["machine"]
    has = f"{machine['cores']} cores, {machine['memory_gib']} GiB; {' '.join(machine['instruction_sets'])}"
    head = [
        f"{machine['cpu']}, {has}",
        f"{100 * result['elsewhere']:.0f} % of the cores' time in timed rounds went elsewhere"
        + (": DISTURBED, run it again" if result["elsewhere"] > DISTURBED else ""),
        f"rootdk {machine['commit']}, {machine['date']}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items() if name != "rootdk"),
    ]
    titles = [
        "",
        "ms",
        "rate",
        "of limit",
        *(f"× {peer.title}" for peer in PEERS),
        *(f"stats {level}" for level in COLLECTING),
        "1→2",
        "pairs",
    ]
    table = columns([titles, *map(line, rows)])
    verdicts = columns(
        [
            ["bar", "value", "floor", "goal", "", "row"],
            *(
                [bar.name, f"{bar.value:.2f}", f"{bar.floor:.2f}", f"{bar.goal:.2f}", bar.verdict(), bar.row]
                for bar in bars(rows)
            ),
        ],
        left=(0, 4, 5),
    )
    notes = (
        "rate: multiply and add of visible pairs (4·d forward, 10·d backward), or bytes of K and V read once.\n"
        "of limit: of the multiply-add peak, or of the bandwidth of reading the same bytes, measured in the\n"
        "same rounds. × peer: the peer's seconds over rootdk's, median of the rounds [10 %–90 %]. stats:\n"
        "seconds with statistics (basic is rootdk's default, and what is compared) over seconds without.\n"
        "wrong: failed the check, not timed. of reading the same bytes: by a loop that does nothing else, in\n"
        "the process of each, from its own K and V. A wide spread means that the machine's bandwidth changed\n"
        "during the row, and with it what there was to reach."
    )
    complaints = [
        f"{row.name}: {key}: {entry['complaint']}"
        for row in rows
        for key, entry in row.record["competitors"].items()
        if entry.get("complaint")
    ]
    return "\n\n".join(
        part
        for part in (
            "\n".join(head),
            "\n".join(limits(rows)),
            table,
            looking(rows),
            memory(rows),
            notes,
            "\n".join(complaints),
            verdicts,
        )
        if part
    )
