// What a chart lets one choose by itself, its menus and its rules that can be switched off, as a part of the address.

/// menus: of each its name in the chart and in the state, {Show: "others_show"}; off: what the list of the rules that are
/// switched off is called. Gives a function that ties a figure to them; of several the newest is the one that follows.
function in_address(state, {menus = {}, off = null}) {
  let figure = null;
  /// Its menu of that name, if it has one.
  function select_of(title) {
    const label = [...figure.querySelectorAll(".controls label")].find((one) => one.textContent.startsWith(title));
    return label ? label.control : null;
  }
  const switches = () => [...figure.querySelectorAll(".controls button[data-series]")];
  const is_off = (button) => button.getAttribute("aria-pressed") === "false";
  function follow() {
    if (!figure) return;
    for (const [title, name] of Object.entries(menus)) {
      const select = select_of(title);
      if (!select) continue;
      const known = [...select.options].map((one) => one.value);
      const wanted = known.includes(state.values[name]) ? state.values[name] : known[0];
      if (select.value === wanted) continue;
      select.value = wanted;
      select.dispatchEvent(new Event("change"));
    }
    if (!off) return;
    const wanted = state.values[off];  // all of it, whatever the first click says of the others
    for (const button of switches())
      if (is_off(button) !== wanted.includes(button.dataset.series)) button.click();
  }
  state.on(follow);
  return (drawn) => {
    figure = drawn;
    follow();
    for (const [title, name] of Object.entries(menus)) {
      const select = select_of(title);
      if (select) select.addEventListener("change", () => state.set({[name]: select.value}));
    }
    if (off)
      for (const button of switches())
        button.addEventListener(
            "click", () => state.set({[off]: switches().filter(is_off).map((one) => one.dataset.series)}));
    return drawn;
  };
}
