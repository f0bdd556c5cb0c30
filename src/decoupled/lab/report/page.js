"use strict";
const tip = document.getElementById("tip");
function near(box, other) {
  return Math.hypot(box.left + box.width / 2 - other.left - other.width / 2,
    box.top + box.height / 2 - other.top - other.height / 2) < 5;
}
function say(point) {
  const box = point.getBoundingClientRect();
  // Points that lie on each other speak together.
  const together = [...point.ownerSVGElement.querySelectorAll(".point")]
    .filter((other) => other === point || near(box, other.getBoundingClientRect()));
  tip.textContent = together.map((other) => other.dataset.tip).join("\n\n");
  const size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 8);
  tip.style.left = `${left}px`;
  tip.style.top = `${box.top > size.height + 16 ? box.top - size.height - 8 : box.bottom + 8}px`;
  tip.style.visibility = "visible";
}
function hush() { tip.style.visibility = "hidden"; }
for (const point of document.querySelectorAll(".point")) {
  point.addEventListener("pointerenter", () => say(point));
  point.addEventListener("pointerleave", hush);
  point.addEventListener("focus", () => say(point));
  point.addEventListener("blur", hush);
}
addEventListener("scroll", hush, { passive: true });
function keep(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function csv(figure) {
  const rows = [...figure.querySelectorAll("tr")].map((row) => [...row.children].map((cell) => {
    const text = cell.textContent;
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(","));
  keep(`${figure.id}.csv`, new Blob([rows.join("\n") + "\n"], { type: "text/csv" }));
}
function picture(figure) {
  const copy = figure.querySelector("svg").cloneNode(true);
  const [, , width, height] = copy.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("style", "color:#1b1f24");
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = width * 2;
    canvas.height = height * 2;
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#ffffff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => keep(`${figure.id}.png`, blob));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
}
for (const figure of document.querySelectorAll("figure")) {
  figure.querySelector(".csv").addEventListener("click", () => csv(figure));
  figure.querySelector(".png").addEventListener("click", () => picture(figure));
}
