// Elements from descriptions, patched by key: what stays the same keeps its element, and with it focus, selection and scroll. Text is only
// ever text: there is no way from a string to markup here.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "selected", "readOnly", "htmlFor", "indeterminate"]);
const KEPT = Symbol("kept");
let fresh = [];

// h("td.id", { key, title, onclick }, ...children). Children: texts, numbers, descriptions, lists of them; null and false are nothing. One function
// in their place is called only if the element is drawn: under the same `memo` as before it is not.
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const given = props ?? {};
  const all = classes.concat(given.class ?? []).filter(Boolean).join(" ");
  return { name, key: given.key, props: all ? { ...given, class: all } : given, children: typeof children[0] === "function" ? children[0] : flat(children, []) };
}

function flat(children, into) {
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === true || child === "") continue;
    if (Array.isArray(child)) flat(child, into);
    else into.push(typeof child === "object" ? child : { text: String(child) });
  }
  return into;
}

// Make the children of `parent` those described.
export function patch(parent, ...described) {
  const focused = document.activeElement;
  const within = focused && focused !== document.body && parent.contains(focused);
  reconcile(parent, flat(described, []), parent.namespaceURI === SVG);
  // Told only now that they are in the document: a dialog opens and a field takes the focus only there.
  const told = fresh;
  fresh = [];
  for (const [ref, node] of told) ref(node);
  if (within && focused.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function reconcile(parent, wanted, svg) {
  const keyed = new Map();
  const loose = [];
  for (const node of parent.childNodes) {
    const key = node[KEPT]?.key;
    if (key === undefined) loose.push(node);
    else keyed.set(key, node);
  }
  let nextLoose = 0;
  const chosen = wanted.map((item) => {
    if (item.key !== undefined) {
      const node = keyed.get(item.key);
      if (node && node[KEPT].name === item.name) {
        keyed.delete(item.key);
        return node;
      }
      return null;
    }
    const node = loose[nextLoose];
    if (node && fits(node, item)) {
      nextLoose += 1;
      return node;
    }
    const later = loose.findIndex((candidate, index) => index > nextLoose && fits(candidate, item));
    if (later >= 0) {
      for (; nextLoose < later; nextLoose += 1) loose[nextLoose].remove();
      nextLoose += 1;
      return loose[later];
    }
    return null;
  });
  for (const node of keyed.values()) node.remove();
  for (; nextLoose < loose.length; nextLoose += 1) loose[nextLoose].remove();
  let at = parent.firstChild;
  wanted.forEach((item, index) => {
    let node = chosen[index];
    if (node === null) {
      node = create(item, svg);
      parent.insertBefore(node, at);
    } else {
      if (node === at) at = at.nextSibling;
      else parent.insertBefore(node, at);
      update(node, item, svg);
    }
  });
}

function fits(node, item) {
  if (item.text !== undefined) return node.nodeType === 3;
  return node.nodeType === 1 && node[KEPT] !== undefined && node[KEPT].key === undefined && node[KEPT].name === item.name;
}

function create(item, svg) {
  if (item.text !== undefined) return document.createTextNode(item.text);
  const inSvg = svg || item.name === "svg";
  const node = inSvg ? document.createElementNS(SVG, item.name) : document.createElement(item.name);
  node[KEPT] = { name: item.name, key: item.key, props: {} };
  update(node, item, svg);
  if (item.props.ref) fresh.push([item.props.ref, node]);
  return node;
}

function update(node, item, svg) {
  if (item.text !== undefined) {
    if (node.data !== item.text) node.data = item.text;
    return;
  }
  const before = node[KEPT].props;
  // The same `memo` as before stands for the same content.
  if (item.props.memo !== undefined && item.props.memo === before.memo) return;
  const children = typeof item.children === "function" ? flat([item.children()], []) : item.children;
  reconcile(node, children, svg || item.name === "svg");
  for (const name of Object.keys(before)) if (!(name in item.props)) set(node, name, null);
  for (const [name, value] of Object.entries(item.props)) if (before[name] !== value) set(node, name, value);
  node[KEPT].props = item.props;
}

function set(node, name, value) {
  if (name === "key" || name === "memo" || name === "ref") return;
  if (name.startsWith("on")) listen(node, name.slice(2), value);
  else if (name === "style") restyle(node, value ?? {});
  else if (PROPERTIES.has(name) && node.namespaceURI !== SVG) node[name] = value ?? (name === "value" ? "" : false);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}

function restyle(node, rules) {
  const styled = (node[KEPT].styled ??= {});
  for (const [rule, said] of Object.entries(rules)) {
    if (styled[rule] !== said) node.style.setProperty(rule, said);
    styled[rule] = said;
  }
}

function listen(node, type, handler) {
  const handlers = (node[KEPT].handlers ??= {});
  if (!(type in handlers)) node.addEventListener(type, (event) => handlers[type]?.(event));
  handlers[type] = handler;
}
