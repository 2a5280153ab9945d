/* The processes of the sandbox, for whoever looks at it from above: nothing is asked of the image. */
#define _GNU_SOURCE
#include "look.h"

#include "bytes.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_COMMAND_BYTES 4096
#define MAX_PROCESSES 20000

static ssize_t read_file(const char *pid, const char *name, char *text, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t size = read(fd, text, room - 1);
    close(fd);
    text[size > 0 ? size : 0] = 0;
    return size;
}

/* u32 pid | u32 parent | u32 uid | u8 state | u64 CPU ms | u64 resident bytes | u32 n, n texts.
 * 1, or 0 for one that has just gone. */
static int add_process(struct bytes *table, const char *pid) {
    char stat_text[1024], command[MAX_COMMAND_BYTES], path[64];
    struct stat info;
    struct writer head = {.size = 0};
    int parent = 0;
    char state = '?';
    unsigned long user = 0, system = 0;
    long resident = 0;
    snprintf(path, sizeof path, "/proc/%.20s", pid);
    if (stat(path, &info) || read_file(pid, "stat", stat_text, sizeof stat_text) <= 0) return 0;
    char *start = strchr(stat_text, '('), *end = strrchr(stat_text, ')');
    if (!start || !end) return 0;
    sscanf(end + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %*u "
                    "%*u %ld", &state, &parent, &user, &system, &resident);
    ssize_t size = read_file(pid, "cmdline", command, sizeof command);
    if (size <= 0) { /* a kernel thread or a zombie has only its name */
        *end = 0;
        size = snprintf(command, sizeof command, "[%s]", start + 1) + 1;
    }
    put_u32(&head, (uint32_t)atoi(pid));
    put_u32(&head, (uint32_t)parent);
    put_u32(&head, (uint32_t)info.st_uid);
    put_u8(&head, (uint8_t)state);
    put_u64(&head, (uint64_t)(user + system) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK));
    put_u64(&head, (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE));
    uint32_t words = 0;
    for (char *at = command; at < command + size; at += strlen(at) + 1) words++;
    put_u32(&head, words);
    append(table, head.bytes, head.size);
    for (char *at = command; at < command + size; at += strlen(at) + 1) {
        struct writer word = {.size = 0};
        put_text(&word, at);
        append(table, word.bytes, word.size);
    }
    return 1;
}

int handle_look(int conn, const struct frame *frame) {
    struct bytes table = {0}, whole = {0};
    struct writer head = {.size = 0};
    struct dirent *entry;
    uint32_t count = 0;
    (void)frame;
    DIR *proc = opendir("/proc");
    while (proc && count < MAX_PROCESSES && (entry = readdir(proc)))
        if (isdigit((unsigned char)entry->d_name[0])) count += (uint32_t)add_process(&table, entry->d_name);
    if (proc) closedir(proc);
    put_u32(&head, count);
    append(&whole, head.bytes, head.size);
    append(&whole, table.data, left_in(&table));
    return send_frame(conn, REP_DONE, whole.data, left_in(&whole), NO_FD) ? 1 : 0;
}
