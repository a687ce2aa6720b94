// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// The page of `virtctl vnc --web`: noVNC for the guest's screen and xterm.js for its serial console. The console is opened only
// when its tab is first selected, because that disconnects another client.

import RFB from "../assets/novnc/core/rfb.js";
import RawDecoder from "../assets/novnc/core/decoders/raw.js";

// noVNC 1.3 makes only the first lines of a raw rectangle opaque. The other lines would be transparent, as servers set the fourth
// byte of a pixel to 0. Later versions hide rQ and do not need this.
const decodeRect = RawDecoder.prototype.decodeRect;
RawDecoder.prototype.decodeRect = function (x, y, width, height, sock, display, depth) {
  if (sock.rQ instanceof Uint8Array && Number.isInteger(sock.rQi) && depth !== 8 && width > 0) {
    const lines = Math.min(this._lines || height, Math.floor(sock.rQlen / (4 * width)));
    for (let i = 0; i < lines * width; i++) { sock.rQ[sock.rQi + 4 * i + 3] = 255; }
  }
  return decodeRect.call(this, x, y, width, height, sock, display, depth);
};

const element = (id) => document.getElementById(id);

const address = (path) => {
  const url = new URL(path, document.baseURI);
  url.protocol = "ws:";
  return url.href;
};

// A view has a tab, a status text and a connection.
class View {
  constructor(name) {
    this.name = name;
    this.status = "";
    this.failed = false;
  }

  setStatus(text, failed = false) {
    this.status = text;
    this.failed = failed;
    showStatus();
  }
}

class Screen extends View {
  // noVNC does not pass on the reason of a close frame.
  open() {
    this.setStatus("Connecting to the screen…");
    const container = element("screen");
    container.replaceChildren();
    const socket = new WebSocket(address("screen"), ["binary"]);
    socket.binaryType = "arraybuffer";
    let reason = "";
    socket.addEventListener("close", (event) => { reason = event.reason; });
    this.rfb = new RFB(container, socket);
    this.rfb.scaleViewport = true;
    this.rfb.focusOnClick = true;
    this.rfb.addEventListener("connect", () => {
      this.setStatus("Connected to the screen");
      this.rfb.focus();
    });
    this.rfb.addEventListener("disconnect", () => {
      this.rfb = undefined;
      this.setStatus(reason || "The connection to the screen ended", true);
    });
  }

  isOpen() { return this.rfb !== undefined; }

  shown() {
    if (this.rfb) { this.rfb.focus(); }
  }
}

class Console extends View {
  constructor(name) {
    super(name);
    this.terminal = undefined;
    this.socket = undefined;
  }

  open() {
    this.setStatus("Connecting to the serial console…");
    if (!this.terminal) {
      this.terminal = new window.Terminal({ cols: 80, rows: 24, scrollback: 5000, cursorBlink: true, rendererType: "dom" });
      this.terminal.open(element("console"));
      const typed = (text) => {
        if (this.socket && this.socket.readyState === WebSocket.OPEN) { this.socket.send(new TextEncoder().encode(text)); }
      };
      // xterm.js 4 and later have onData, earlier ones on().
      if (this.terminal.onData) { this.terminal.onData(typed); } else { this.terminal.on("data", typed); }
    }
    const socket = new WebSocket(address("console"), ["binary"]);
    socket.binaryType = "arraybuffer";
    const decoder = new TextDecoder("utf-8");
    socket.addEventListener("open", () => this.setStatus("Connected to the serial console. Press Enter if it shows nothing."));
    socket.addEventListener("message", (event) => this.terminal.write(decoder.decode(event.data, { stream: true })));
    socket.addEventListener("close", (event) => {
      this.socket = undefined;
      this.setStatus(event.reason || "The connection to the serial console ended", true);
    });
    this.socket = socket;
  }

  isOpen() { return this.socket !== undefined; }

  shown() {
    if (!this.terminal) { this.open(); }
    this.terminal.focus();
  }
}

const views = { screen: new Screen("screen"), console: new Console("console") };
let current = views.screen;

function showStatus() {
  const status = element("status");
  status.textContent = current.status;
  status.classList.toggle("failed", current.failed);
  element("reconnect").hidden = !current.failed;
}

function choose(view) {
  current = view;
  for (const name of Object.keys(views)) {
    element(name).hidden = name !== view.name;
    element("tab-" + name).setAttribute("aria-selected", String(name === view.name));
  }
  element("keys").hidden = view !== views.screen;
  view.shown();
  showStatus();
}

element("tab-screen").addEventListener("click", () => choose(views.screen));
element("tab-console").addEventListener("click", () => choose(views.console));
element("reconnect").addEventListener("click", () => {
  if (!current.isOpen()) { current.open(); }
});
element("keys").addEventListener("click", () => {
  if (views.screen.rfb) { views.screen.rfb.sendCtrlAltDel(); }
});

views.screen.open();
