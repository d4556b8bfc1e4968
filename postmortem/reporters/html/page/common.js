// What charts.js and table.js share. Everything that is to be read is in the page without them.
const DATA = document.getElementById("data");
const RUNS = DATA ? JSON.parse(DATA.textContent) : [];
const make = (tag, props, ...children) => {
  const element = Object.assign(document.createElement(tag), props);
  element.append(...children);
  return element;
};
