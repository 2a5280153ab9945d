#!/bin/sh
# Writes 1 or 0 to /logs/verifier/reward.txt.
score=1
check() {
    printf '%s' "$1" > /tmp/input.txt
    [ "$(sh /app/count.sh /tmp/input.txt | tr -s ' ' | sed 's/^ //')" = "$2" ] || score=0
}
check "The cat saw the dog; the dog saw a cat-fish. THE END" "4 the
2 cat
2 dog
2 saw
1 a
1 end
1 fish"
check "it's 2x B b" "2 b
1 it
1 s
1 x"
check "" ""
echo "$score" > /logs/verifier/reward.txt
