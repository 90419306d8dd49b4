// The page itself: tabs, and the address that says what they show.

(function site() {
  const bar = document.getElementById("tabs"), main = document.getElementById("parts");
  const tabs = new Map();  // id → {part, tab, panel, made, shown}

  for (const part of site_parts) {
    const tab =
        el("a", {
          role: "tab",
          id: `tab-${part.id}`,
          href: `${location.pathname}#${part.id}`,  // with the page: a tab that is scrolled away is no link to skip to
          "aria-controls": `part-${part.id}`,
          "aria-selected": "false",
          tabindex: -1
        },
           part.title);
    const panel_node =
        el("div",
           {role: "tabpanel", id: `part-${part.id}`, class: "part", "aria-labelledby": `tab-${part.id}`, hidden: ""});
    bar.append(tab);
    main.append(panel_node);
    tabs.set(part.id, {part, tab, panel: panel_node, made: null});
    part.state.written = () => write_soon();
    tab.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      open(part.id);
    });
  }
  bar.addEventListener("keydown", (event) => {
    const ids = [...tabs.keys()], at = ids.indexOf(current);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: ids.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const id = ids[(to + ids.length) % ids.length];
    open(id);
    tabs.get(id).tab.focus();
  });

  let current = null, timer = 0;
  const address_of = (id) => {
    const query = tabs.get(id).part.state.query();
    return `#${id}${query ? `?${query}` : ""}`;
  };
  function write(push) {
    clearTimeout(timer);
    timer = 0;
    let address = address_of(current);
    if (address.length > 8000) address = `#${current}`;  // more than others would pass on, or a browser take
    if (address === location.hash) return;
    history[push ? "pushState" : "replaceState"](null, "", address);
  }
  const write_soon = () => {
    if (!timer && current) timer = setTimeout(() => write(false), 250);
  };

  /// The tab that is shown: where a phone is turned, too.
  function keep_in_sight() {
    if (current) tabs.get(current).tab.scrollIntoView({block: "nearest", inline: "nearest", behavior: "instant"});
  }
  function show(id) {
    if (id === current) return;
    const before = tabs.get(current), now = tabs.get(id);
    if (before) {
      before.panel.hidden = true;
      before.tab.setAttribute("aria-selected", "false");
      before.tab.tabIndex = -1;
      if (before.made && before.made.hidden) before.made.hidden();
    }
    current = id;
    document.body.dataset.part = id;
    document.title = `${now.part.title} · Why attention is divided by √d_k`;
    now.panel.hidden = false;
    now.tab.setAttribute("aria-selected", "true");
    now.tab.tabIndex = 0;
    keep_in_sight();
    if (!now.made) {
      now.made = now.part.make(now.panel, now.part.state) || {};
      fit_charts(now.panel);
    }
    if (now.made.shown) now.made.shown();
  }
  function open(id, values, baggage) {
    if (timer) write(false);
    if (values) tabs.get(id).part.state.take(values, false);
    const moved = id !== current;
    show(id);
    write(true);
    if (moved) scrollTo({top: 0, behavior: "instant"});
    if (baggage && tabs.get(id).made.receive) tabs.get(id).made.receive(baggage);
  }
  site_open = open;

  function read() {
    const [id, query] = location.hash.slice(1).split("?");
    const known = tabs.has(id) ? id : site_parts[0].id;
    tabs.get(known).part.state.read(new URLSearchParams(query || ""));
    const same = known === current;
    show(known);
    if (same && tabs.get(known).made.shown) tabs.get(known).made.shown();
  }
  addEventListener("hashchange", read);
  addEventListener("resize", keep_in_sight);
  // A file that is dropped beside the place for it would be opened instead of this page, and what was trained here be
  // gone.
  for (const kind of ["dragover", "drop"])
    addEventListener(kind, (event) => {
      if (event.defaultPrevented || !event.dataTransfer || !event.dataTransfer.types.includes("Files")) return;
      if (event.target.matches("input[type=file]")) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();  // the address says what is shown, not where one is
    main.focus();
  });

  const copy = document.getElementById("copy-link");
  copy.addEventListener("click", async () => {
    write(false);
    try {
      await navigator.clipboard.writeText(location.href);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "It is in the address bar";
    }
    setTimeout(() => (copy.textContent = "Copy link"), 2500);
  });
  read();
})();
