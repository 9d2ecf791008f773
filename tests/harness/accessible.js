// Returns what a person with another eye, hand or ear would stumble over, as texts; none is well.
(() => {
  const wrong = [];
  const say = (node, text) => wrong.push(`${text}: ${node.outerHTML.slice(0, 120)}`);
  const isSeen = (node) => node.getClientRects().length > 0 && getComputedStyle(node).visibility !== "hidden";
  const name = (node) => {
    const by = node.getAttribute("aria-labelledby");
    if (by) return by.split(" ").map((id) => (document.getElementById(id) || { textContent: "" }).textContent).join(" ");
    return node.getAttribute("aria-label") || (node.labels && node.labels[0] && node.labels[0].textContent)
      || node.textContent || node.getAttribute("title") || "";
  };
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title) wrong.push("no title");
  if (document.querySelectorAll("main").length !== 1) wrong.push("not one main");
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  const viewport = document.querySelector("meta[name=viewport]");
  if (!viewport || /user-scalable=no|maximum-scale/.test(viewport.content)) wrong.push("cannot be enlarged");
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) wrong.push(`id ${id} twice`);
  let level = 1;
  for (const head of document.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
    if (!isSeen(head)) continue;
    const own = Number(head.tagName[1]);
    if (own > level + 1) say(head, `heading from ${level} to ${own}`);
    if (!head.textContent.trim()) say(head, "empty heading");
    level = own;
  }
  for (const node of document.querySelectorAll("button,a[href],select,input,summary,[role=img],[role=region],section"))
    if (!name(node).trim()) say(node, "no name");
  for (const node of document.querySelectorAll("ul,ol"))
    for (const child of node.children) if (child.tagName !== "LI") say(child, "no li in a list");
  for (const node of document.querySelectorAll("dl"))
    for (const child of node.children) if (!["DT", "DD"].includes(child.tagName)) say(child, "no dt or dd");
  for (const node of document.querySelectorAll("table")) if (!node.querySelector("th[scope]")) say(node, "no heads");
  for (const node of document.querySelectorAll("[tabindex]")) if (node.tabIndex > 0) say(node, "own order of tabs");
  for (const node of document.querySelectorAll("*")) {
    const isScrolled = node.scrollHeight > node.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(node).overflowY);
    if (isScrolled && node.tabIndex < 0 && node !== document.documentElement && node !== document.body)
      say(node, "scrolls, and not by the keyboard");
  }
  const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
    .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !isSeen(node) || /SCRIPT|STYLE|NOSCRIPT|TITLE/i.test(node.tagName)) continue;
    if (node.closest(".quiet") || node.closest(".skip")) continue;
    const [one, other] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) say(node, `contrast ${ratio.toFixed(2)}`);
  }
  for (const node of document.querySelectorAll("button,select,summary")) {
    const box = node.getBoundingClientRect();
    if (isSeen(node) && (box.height < 24 || box.width < 24)) say(node, "too small for a finger");
  }
  const wide = document.documentElement;
  if (wide.scrollWidth > wide.clientWidth + 1) wrong.push(`wider than the window: ${wide.scrollWidth} > ${wide.clientWidth}`);
  return wrong;
})()
