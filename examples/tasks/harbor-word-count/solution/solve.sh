#!/bin/sh
cat > /app/count.sh <<'END'
export LC_ALL=C
tr -cs 'A-Za-z' '\n' < "$1" | tr 'A-Z' 'a-z' | sed '/^$/d' | sort | uniq -c | sort -k1,1nr -k2,2
END
