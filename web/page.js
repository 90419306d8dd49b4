// The report's page: the results inside it, and the contents beside them.

const sections = sections_of(results);
document.getElementById("experiments").append(...sections);
document.getElementById("contents").append(contents_of(sections));
document.getElementById("made").append(...made_with(results));
document.getElementById("closing").append(
    ...[results.machine && results.machine.conclusion ? el("p", {}, ref(results.machine, "conclusion")) : null,
        el("p", {}, kThanks)]
        .filter(Boolean));
fit_charts();
