/* The processes of the sandbox, for whoever looks at it from above: nothing is asked of the image. */
#define _GNU_SOURCE
#include "rock_init.h"

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

struct table {
    unsigned char *data;
    size_t size, room;
    uint32_t count;
};

static void add(struct table *table, const void *data, size_t size) {
    if (table->size + size > table->room) {
        table->room = (table->size + size) * 2;
        table->data = realloc(table->data, table->room);
        if (!table->data) _exit(70);
    }
    memcpy(table->data + table->size, data, size);
    table->size += size;
}

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

/* u32 pid | u32 parent | u32 uid | u8 state | u64 CPU ms | u64 resident bytes | u32 n, n texts */
static void add_process(struct table *table, const char *pid) {
    char stat_text[1024], command[MAX_COMMAND_BYTES], path[64];
    struct stat info;
    struct writer head = {.size = 0};
    int parent = 0;
    char state = '?';
    unsigned long user = 0, system = 0;
    long resident = 0;
    snprintf(path, sizeof path, "/proc/%.20s", pid);
    if (stat(path, &info) || read_file(pid, "stat", stat_text, sizeof stat_text) <= 0) return;
    char *start = strchr(stat_text, '('), *end = strrchr(stat_text, ')');
    if (!start || !end) return;
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
    add(table, head.bytes, head.size);
    for (char *at = command; at < command + size; at += strlen(at) + 1) {
        struct writer word = {.size = 0};
        put_text(&word, at);
        add(table, word.bytes, word.size);
    }
    table->count++;
}

int handle_look(int conn, const struct frame *frame) {
    struct table table = {0};
    struct writer head = {.size = 0};
    struct dirent *entry;
    (void)frame;
    DIR *proc = opendir("/proc");
    while (proc && table.count < MAX_PROCESSES && (entry = readdir(proc)))
        if (isdigit((unsigned char)entry->d_name[0])) add_process(&table, entry->d_name);
    if (proc) closedir(proc);
    put_u32(&head, table.count);
    struct table whole = {0};
    add(&whole, head.bytes, head.size);
    add(&whole, table.data, table.size);
    return send_frame(conn, REP_DONE, whole.data, whole.size, NO_FD) ? 1 : 0;
}
