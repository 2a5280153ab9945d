/* Time, children, and ending every one of them.
 *
 * A supervisor is a subreaper: whatever a command starts stays below it, however often it forks
 * or changes its session, and comes up as its direct child when the process between dies.
 * Killing direct children again and again until there are none therefore ends everything.
 */
#define _GNU_SOURCE
#include "processes.h"

#include "wire.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void nap_ns(long nanoseconds) {
    struct timespec pause = {0, nanoseconds};
    nanosleep(&pause, NULL);
}

static int is_spared(pid_t pid, const pid_t *spared, size_t spared_count) {
    for (size_t i = 0; i < spared_count; i++)
        if (spared[i] == pid) return 1;
    return 0;
}

static int signal_one(pid_t pid, const pid_t *spared, size_t spared_count) {
    return pid > 1 && !is_spared(pid, spared, spared_count) && kill(pid, SIGKILL) == 0;
}

/* Without CONFIG_PROC_CHILDREN: whoever names us as parent in /proc/PID/stat. */
static int signal_by_scan(const pid_t *spared, size_t spared_count) {
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int signalled = 0, parent;
    while (proc && (entry = readdir(proc))) {
        char path[300], text[512], *after_name;
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t size = read(fd, text, sizeof text - 1);
        close(fd);
        text[size > 0 ? size : 0] = 0;
        after_name = strrchr(text, ')');
        if (after_name && sscanf(after_name, ") %*c %d", &parent) == 1 && parent == getpid())
            signalled += signal_one((pid_t)atoi(entry->d_name), spared, spared_count);
    }
    if (proc) closedir(proc);
    return signalled;
}

/* SIGKILL every child except the spared ones; how many were signalled. */
int signal_children(const pid_t *spared, size_t spared_count) {
    char path[64], text[4096];
    int signalled = 0;
    pid_t pid = 0;
    ssize_t size;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return signal_by_scan(spared, spared_count);
    while ((size = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < size; i++) {
            if (text[i] != ' ') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            signalled += signal_one(pid, spared, spared_count);
            pid = 0;
        }
    }
    close(fd);
    return signalled;
}

static size_t list_children_of_task(const char *path, pid_t *found, size_t room,
                                    const pid_t *spared, size_t spared_count) {
    char text[4096];
    size_t count = 0;
    pid_t pid = 0;
    ssize_t size;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    while ((size = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < size; i++) {
            if (text[i] != ' ') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (count < room && !is_spared(pid, spared, spared_count)) found[count++] = pid;
            pid = 0;
        }
    }
    close(fd);
    return count;
}

/* Breadth first, through every thread of every process: a child belongs to the thread that made it. */
size_t list_descendants(pid_t root, pid_t *found, size_t room, const pid_t *spared,
                        size_t spared_count) {
    size_t count = 0, next = 0;
    for (pid_t parent = root;; parent = found[next++]) {
        char path[600];
        snprintf(path, sizeof path, "/proc/%d/task", parent);
        DIR *tasks = opendir(path);
        struct dirent *entry;
        while (tasks && (entry = readdir(tasks))) {
            if (!isdigit((unsigned char)entry->d_name[0])) continue;
            snprintf(path, sizeof path, "/proc/%d/task/%s/children", parent, entry->d_name);
            count += list_children_of_task(path, found + count, room - count, spared, spared_count);
        }
        if (tasks) closedir(tasks);
        if (next == count) return count;
    }
}

/* Kills and reaps until no child is left. Gives up after the bound (a process that the kernel cannot
 * end yet) and returns 1; PID 1 inherits what is left and goes on. Stores the leader's status. */
int end_descendants(int64_t bound_ns, pid_t leader, int *leader_status) {
    int64_t deadline = now_ns() + bound_ns;
    for (;;) {
        int status;
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == leader && leader_status) *leader_status = status;
        if (pid < 0 && errno == ECHILD) return 0;
        if (now_ns() > deadline) return 1;
        signal_children(NULL, 0);
        nap_ns(200000);
    }
}

static int oom_counter = NO_FD;

void keep_oom_counter(int fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    oom_counter = fd;
}

static long long read_counter(int fd) {
    char text[512];
    ssize_t size = pread(fd, text, sizeof text - 1, 0);
    text[size > 0 ? size : 0] = 0;
    const char *line = strstr(text, "oom_kill ");
    return line ? atoll(line + strlen("oom_kill ")) : -1;
}

static long long read_counter_at(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    long long count = read_counter(fd);
    close(fd);
    return count;
}

long long oom_kills(void) {
    if (oom_counter != NO_FD) return read_counter(oom_counter);
    long long count = read_counter_at("/sys/fs/cgroup/memory.events");
    return count >= 0 ? count : read_counter_at("/sys/fs/cgroup/memory/memory.oom_control");
}
