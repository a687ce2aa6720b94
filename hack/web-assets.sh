#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Copies the third-party code of the page of `virtctl vnc --web` and its licenses to where the build embeds them:
# noVNC's core and xterm.js, from the Debian packages novnc and node-xterm. Prints a message and changes nothing if
# these are not installed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=internal/virtctl/vnc/web/assets
share=/usr/share
novnc=$share/novnc
xterm=$share/nodejs/xterm/lib
css=$share/javascript/xterm/xterm.css
for needed in "$novnc/core/rfb.js" "$novnc/vendor/pako" "$xterm/public/Terminal.js" "$css" "$share/doc/novnc/copyright" "$share/doc/node-xterm/copyright"; do
	[ -e "$needed" ] || {
		echo "web-assets: $needed is missing (packages novnc and node-xterm): virtctl is built without the page of vnc --web" >&2
		exit 0
	}
done

# bundle DIRECTORY: prints the modules of a directory as one script that sets window.Terminal. The package's own bundle
# calls require(), which browsers do not support.
bundle() {
	local file
	echo '(function (modules) {'
	cat <<'JS'
  const loaded = {};
  const load = (path) => {
    if (!(path in loaded)) {
      const module = { exports: {} };
      loaded[path] = module;
      const folder = path.split("/").slice(0, -1);
      modules[path](module, module.exports, (request) => {
        const parts = folder.slice();
        for (const part of request.split("/")) {
          if (part === "..") { parts.pop(); } else if (part !== ".") { parts.push(part); }
        }
        return load(parts.join("/"));
      });
    }
    return loaded[path].exports;
  };
  window.Terminal = load("public/Terminal").Terminal;
JS
	echo '})({'
	while IFS= read -r file; do
		printf '"%s": function (module, exports, require) {\n' "${file%.js}"
		grep -v '^//# sourceMappingURL=' "$1/$file"
		echo '},'
	done < <(cd "$1" && find . -name '*.js' ! -name '*.test.js' ! -path './addons/*' ! -path ./xterm.js -printf '%P\n' | LC_ALL=C sort)
	echo '});'
}

new=$(mktemp -d "$target/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/novnc/vendor" "$new/xterm" "$new/licenses"
cp -RL "$novnc/core" "$new/novnc/core"
cp -RL "$novnc/vendor/pako" "$new/novnc/vendor/pako"
bundle "$xterm" >"$new/xterm/xterm.js"
cp -L "$css" "$new/xterm/"
cp -L "$share/doc/novnc/copyright" "$new/licenses/novnc.txt"
cp -L "$share/doc/node-xterm/copyright" "$new/licenses/xterm.txt"
# The license file that Debian's copyright file of noVNC refers to.
[ ! -e "$share/common-licenses/MPL-2.0" ] || cp -L "$share/common-licenses/MPL-2.0" "$new/licenses/MPL-2.0.txt"
find "$new" -type f -exec chmod 644 {} +
# Replace only files that differ, so that the go command does not build again without need.
for part in novnc xterm licenses; do
	if ! diff -rq "$new/$part" "$target/$part" >/dev/null 2>&1; then
		rm -rf "${target:?}/$part"
		mv "$new/$part" "$target/$part"
	fi
done
