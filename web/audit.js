// The audit's page: the finding, and what audit_view.js makes of the JSON inside it.

const view = audit_view(results);
add(document.getElementById("model"), ref(results, "model"));
add(document.getElementById("finding"), results.headline ? ref(results, "headline") : "How near every head is to freezing");
add(document.getElementById("conclusion"), ref(results, "conclusion"));
add(document.getElementById("made"),
    el("span", {}, "family ", ref(results, "family"), " · scale ", rule_name(results.scale_rule),
       ` · ${counted(results.layers.length, "attention layer")} · ${counted(view.heads.length, "head")} · verdicts at ${grouped(view.judged)} keys`));
document.getElementById("audit").append(...[view.map, view.drift, view.head, view.table].filter(Boolean));
document.getElementById("closing").append(
    el("p", {}, "How far the model's scale is from the one that would give each head's scores unit variance. Every number is taken from the JSON inside this file."),
    el("p", {}, kThanks));
fit_charts();
