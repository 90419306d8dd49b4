// What a chart lets one choose by itself, its menus and its rules that can be switched off, as a part of the address.

/// menus: of each its name in the chart and in the state, {Show: "others_show"}; off: what the list of the rules that are
/// switched off is called. Gives a function that ties a figure to them; of several the newest is the one that follows.
function in_address(state, {menus = {}, off = null}) {
  let figure = null;
  const select_of = (title) =>
      [...figure.querySelectorAll(".controls label")].find((one) => one.textContent.startsWith(title)).control;
  const switches = () => [...figure.querySelectorAll(".controls button[data-series]")];
  const is_off = (button) => button.getAttribute("aria-pressed") === "false";
  function follow() {
    if (!figure) return;
    for (const [title, name] of Object.entries(menus)) {
      const select = select_of(title);
      if (select.value === state.values[name]) continue;
      select.value = state.values[name];
      select.dispatchEvent(new Event("change"));
    }
    if (off)
      for (const button of switches())
        if (is_off(button) !== state.values[off].includes(button.dataset.series)) button.click();
  }
  state.on(follow);
  return (drawn) => {
    figure = drawn;
    follow();
    for (const [title, name] of Object.entries(menus)) {
      const select = select_of(title);
      select.addEventListener("change", () => state.set({[name]: select.value}));
    }
    if (off)
      for (const button of switches())
        button.addEventListener(
            "click", () => state.set({[off]: switches().filter(is_off).map((one) => one.dataset.series)}));
    return drawn;
  };
}
