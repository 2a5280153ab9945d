# Exactly one file of each content is left, the one whose path is first, and a list says what went.
cd "$1/photos" || exit 1
find . -type f -print0 | LC_ALL=C sort -z | tr '\0' '|' > /tmp/left
cat > /tmp/wanted <<'END'
./2024/a copy.jpg|./2024/empty|./2024/new
line.jpg|./2024/x.jpg|./2025/-dash.jpg|./2025/ünï.jpg|
END
[ "$(cat /tmp/left)" = "$(cat /tmp/wanted)" ] || exit 1
[ "$(cat '2024/a copy.jpg' 2024/x.jpg 2025/-dash.jpg)" = "$(printf 'one\ntwo\nthree')" ] || exit 1
[ "$(readlink 2025/link.jpg)" = x.jpg ] || exit 1
tr '\0' '|' < ../removed > /tmp/removed
[ "$(cat /tmp/removed)" = "2025/a.jpg|2025/deep/b.jpg|2025/empty|" ] || exit 1
