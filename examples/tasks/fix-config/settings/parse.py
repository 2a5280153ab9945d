"""`a.b = value` lines: numbers, true and false, "text", bare text, lists in brackets; # begins a
comment, but not inside quotes."""


def parse(text):
    result = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        path, value = line.split("=")
        *tables, key = path.strip().split(".")
        table = result
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value_of(value.strip())
    return result


def value_of(text):
    if text.startswith("["):
        return [value_of(part.strip()) for part in text[1:-1].split(",")]
    if text.startswith('"'):
        return text.strip('"')
    if text in ("true", "false"):
        return bool(text)
    if text.isdigit():
        return int(text)
    return text
