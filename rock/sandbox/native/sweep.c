/* All processes of the sandbox at once: ending them (for a reset) or stopping them (a pause). */
#define _GNU_SOURCE
#include "sweep.h"

#include "processes.h"
#include "serve.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOUND_NS (10 * (int64_t)1000000000)
#define MAX_NAMED 20

struct seen {
    pid_t pid, session;
    char state;
    char name[32];
};

/* One line of /proc/PID/stat: pid (name) state parent group session ...; the name may hold anything. */
static int look(const char *pid, struct seen *seen) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size : 0] = 0;
    char *start = strchr(text, '('), *end = strrchr(text, ')');
    int session = -1;
    if (!start || !end || sscanf(end + 1, " %*c %*d %*d %d", &session) != 1) return 0;
    *end = 0;
    seen->session = session;
    seen->pid = (pid_t)atoi(text);
    seen->state = end[2];
    snprintf(seen->name, sizeof seen->name, "%.31s", start + 1);
    return 1;
}

/* The next process that is not dead; 0 at the end. The helper's own are in the session of PID 1, which a
 * command leaves before it starts and nobody can join: of these only `spare_handlers` says whether those
 * count that were there before this one, while new ones (a layer being freed) never do. */
static int next_process(DIR *proc, struct seen *seen, int spare_handlers) {
    pid_t own = getsid(1);
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0]) || !look(entry->d_name, seen)) continue;
        if (seen->pid == 1 || seen->pid == getpid() || strchr("ZX", seen->state)) continue;
        if (seen->session == own && (spare_handlers || !is_handler(seen->pid))) continue;
        return 1;
    }
    return 0;
}

struct tally {
    uint32_t commands; /* processes of commands */
    uint32_t all;      /* and the helper's own that were there before this one */
};

static struct tally count_processes(struct writer *names) {
    struct seen seen;
    struct tally tally = {0, 0};
    pid_t own = getsid(1);
    DIR *proc = opendir("/proc");
    while (proc && next_process(proc, &seen, 0)) {
        char text[64];
        snprintf(text, sizeof text, "%d %s", seen.pid, seen.name);
        if (names && tally.all < MAX_NAMED) put_text(names, text);
        tally.all++;
        tally.commands += seen.session != own;
    }
    if (proc) closedir(proc);
    return tally;
}

/* System V objects outlive processes. Only their owner may remove them, so we become that. */
static void remove_shared(const char *table, int uid_column, char kind) {
    char line[512];
    FILE *file = fopen(table, "re");
    int first = 1;
    while (file && fgets(line, sizeof line, file)) {
        long values[12] = {0};
        char *at = line;
        for (int i = 0; i < 12; i++) values[i] = strtol(at, &at, i == 2 ? 8 : 10);
        if (first--, first >= 0) continue; /* the heading */
        pid_t child = fork();
        if (child == 0) {
            int id = (int)values[1];
            if (setresuid((uid_t)values[uid_column], (uid_t)values[uid_column], 0)) _exit(1);
            if (kind == 'm') shmctl(id, IPC_RMID, NULL);
            if (kind == 's') semctl(id, 0, IPC_RMID);
            if (kind == 'q') msgctl(id, IPC_RMID, NULL);
            _exit(0);
        }
        if (child > 0) waitpid(child, NULL, 0);
    }
    if (file) fclose(file);
}

/* Ends every process but PID 1 and this one. kill(-1) reaches also those that are being born: a fork
 * looks for signals before the child exists. Looking is dear, and dying takes them a moment. */
int handle_sweep(int conn, const struct frame *frame) {
    struct writer writer = {.size = 0}, names;
    int64_t deadline = now_ns() + BOUND_NS;
    struct tally left = count_processes(NULL);
    uint32_t found = left.commands;
    (void)frame;
    if (!is_init) return reply_error(conn, STAGE_PROCESS, ENOTSUP, "not PID 1 of a sandbox") ? 1 : 0;
    names.size = 0;
    while (left.all && now_ns() < deadline) {
        kill(-1, SIGKILL);
        nap_ns(200000);
        names.size = 0;
        left = count_processes(&names);
    }
    remove_shared("/proc/sysvipc/shm", 7, 'm');
    remove_shared("/proc/sysvipc/sem", 4, 's');
    remove_shared("/proc/sysvipc/msg", 7, 'q');
    put_u32(&writer, found);
    put_u32(&writer, left.all < MAX_NAMED ? left.all : MAX_NAMED);
    if (writer.size + names.size > sizeof writer.bytes) return 1;
    memcpy(writer.bytes + writer.size, names.bytes, names.size);
    writer.size += names.size;
    return send_frame(conn, REP_DONE, writer.bytes, writer.size, NO_FD) ? 1 : 0;
}

static uint32_t signal_all(int number, int stopped) {
    struct seen seen;
    uint32_t other = 0;
    DIR *proc = opendir("/proc");
    while (proc && next_process(proc, &seen, 1)) {
        if ((seen.state == 'T') == stopped) continue;
        kill(seen.pid, number);
        other++;
    }
    if (proc) closedir(proc);
    return other;
}

/* u32 1: stop every command, 0: let them go on. Answered with how many are not yet so. */
int handle_freeze(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    struct writer writer = {.size = 0};
    int stop = get_u32(&reader) != 0, number = stop ? SIGSTOP : SIGCONT;
    int64_t deadline = now_ns() + BOUND_NS / 5;
    if (!is_init) return reply_error(conn, STAGE_PROCESS, ENOTSUP, "not PID 1 of a sandbox") ? 1 : 0;
    uint32_t left = signal_all(number, stop);
    while (stop && left && now_ns() < deadline) {
        nap_ns(200000);
        left = signal_all(number, stop);
    }
    put_u32(&writer, stop ? left : 0);
    return send_frame(conn, REP_DONE, writer.bytes, writer.size, NO_FD) ? 1 : 0;
}

int handle_count(int conn, const struct frame *frame) {
    struct writer writer = {.size = 0};
    (void)frame;
    put_u32(&writer, count_processes(NULL).commands);
    return send_frame(conn, REP_DONE, writer.bytes, writer.size, NO_FD) ? 1 : 0;
}
