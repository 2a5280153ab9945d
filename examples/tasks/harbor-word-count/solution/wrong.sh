#!/bin/sh
echo 'tr " " "\n" < "$1" | sort | uniq -c | sort -nr' > /app/count.sh
