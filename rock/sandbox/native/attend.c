/* What a supervisor does for a command that is a terminal session or a shell fed with scripts.
 *
 * A terminal lies between two pipes of the client: what comes in is typed, what it shows goes out, and
 * a pipe that nobody empties stops the terminal, not the supervisor.
 *
 * A shell's program comes line by line from a pipe of ours, so it never reads past a line and has no
 * loop that a script could break out of. The script itself is a file in memory that the line sources:
 * no size, quote or newline in it needs care, and a half-finished one is an error of that file only.
 */
#define _GNU_SOURCE
#include "attend.h"

#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATUS_FD 7
#define SCRIPT_FD 9
#define HIGH_FD 32
#define END_OF_INPUT 4 /* what Ctrl-D types */
#define LAST_OUTPUT_NS (2 * (int64_t)1000000000)
#define INTERRUPT_THE_SHELL 1u

static void set_size(int terminal, uint16_t rows, uint16_t columns) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    ioctl(terminal, TIOCSWINSZ, &size);
}

static void do_not_wait(int fd) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

int open_terminal(struct attended *attended, const int stdio[3], const struct account *owner,
                  uint16_t rows, uint16_t columns) {
    int unlocked = 0;
    attended->master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (attended->master < 0 || ioctl(attended->master, TIOCSPTLCK, &unlocked)) return -1;
    /* Not by name: the names in the sandbox are the sandbox's. */
    attended->terminal = ioctl(attended->master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (attended->terminal < 0) return -1;
    if (owner->given) own(attended->terminal, owner);
    set_size(attended->terminal, rows, columns);
    attended->in = dup(stdio[0]);
    attended->out = dup(stdio[1]);
    if (attended->in < 0 || attended->out < 0) return -1;
    fcntl(attended->in, F_SETFD, FD_CLOEXEC);
    fcntl(attended->out, F_SETFD, FD_CLOEXEC);
    do_not_wait(attended->in);
    do_not_wait(attended->out);
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

int take_terminal(const struct attended *attended) {
    if (ioctl(attended->terminal, TIOCSCTTY, 0)) return -1;
    for (int i = 0; i < 3; i++)
        if (dup2(attended->terminal, i) < 0) return -1;
    return 0;
}

int open_script(struct attended *attended, int *program) {
    int ends[2];
    char path[64];
    attended->script = memfd_create("script", MFD_CLOEXEC);
    if (attended->script < 0 || fchmod(attended->script, 0444) || pipe2(ends, O_CLOEXEC)) return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", attended->script);
    attended->script_out = open(path, O_RDONLY | O_CLOEXEC);
    attended->trigger = ends[1];
    do_not_wait(attended->trigger);
    close(*program);
    *program = ends[0];
    return attended->script_out < 0 ? -1 : 0;
}

int take_script(const struct attended *attended, int status) {
    /* First out of the way: either may be a number that the other one needs. */
    int high_status = fcntl(status, F_DUPFD_CLOEXEC, HIGH_FD);
    int high_script = fcntl(attended->script_out, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high_status < 0 || high_script < 0) return -1;
    return dup2(high_status, STATUS_FD) < 0 || dup2(high_script, SCRIPT_FD) < 0 ? -1 : 0;
}

/* What the command has now is not the supervisor's: an end of a pipe kept here would hide its end. */
void close_given(const int stdio[3], int status) {
    for (int i = 0; i < 3; i++) close(stdio[i]);
    if (status >= 0) close(status);
}

size_t attend_polls(const struct attended *attended, struct pollfd *polls) {
    if (attended->master < 0) return 0;
    int typing = attended->typed_to > attended->typed_from;
    int showing = attended->shown_to > attended->shown_from;
    polls[0] = (struct pollfd){typing ? -1 : attended->in, POLLIN, 0};
    polls[1] = (struct pollfd){attended->master, 0, 0};
    if (typing) polls[1].events |= POLLOUT;
    if (!showing) polls[1].events |= POLLIN;
    if (!polls[1].events) polls[1].fd = -1;
    polls[2] = (struct pollfd){showing ? attended->out : -1, POLLOUT, 0};
    return ATTENDED_POLLS;
}

static void take_typed(struct attended *attended) {
    ssize_t size = read(attended->in, attended->typed, sizeof attended->typed);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    attended->typed_from = 0;
    attended->typed_to = size > 0 ? (size_t)size : 1;
    if (size > 0) return;
    attended->typed[0] = END_OF_INPUT;
    close(attended->in);
    attended->in = NO_FD;
}

static void show(struct attended *attended) {
    size_t size = attended->shown_to - attended->shown_from;
    ssize_t done = write(attended->out, attended->shown + attended->shown_from, size);
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) return;
    attended->shown_from += done < 0 ? size : (size_t)done; /* nobody reads it: nobody misses it */
}

/* 1: something is shown; 0: nothing now; -1: nobody has the terminal open and all was read. */
static int take_shown(struct attended *attended) {
    ssize_t size = read(attended->master, attended->shown, sizeof attended->shown);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (size <= 0) return -1;
    attended->shown_from = 0;
    attended->shown_to = (size_t)size;
    show(attended);
    return 1;
}

void attend_terminal(struct attended *attended, const struct pollfd *polls) {
    if (polls[0].revents && attended->in >= 0) take_typed(attended);
    if (attended->typed_to > attended->typed_from) {
        size_t size = attended->typed_to - attended->typed_from;
        ssize_t done = write(attended->master, attended->typed + attended->typed_from, size);
        if (done > 0) attended->typed_from += (size_t)done;
        else if (done < 0 && errno != EAGAIN && errno != EINTR) attended->typed_from += size;
    }
    if (polls[2].revents) show(attended);
    if (polls[1].revents & POLLIN && attended->shown_to == attended->shown_from)
        take_shown(attended);
}

/* Until now this process, too, kept the terminal open, so that its end can be seen only here. */
void drain_terminal(struct attended *attended) {
    int64_t until = now_ns() + LAST_OUTPUT_NS;
    if (attended->master < 0) return;
    close(attended->terminal);
    while (now_ns() < until) {
        int waits = attended->shown_to > attended->shown_from;
        struct pollfd next = {waits ? attended->out : attended->master, waits ? POLLOUT : POLLIN, 0};
        poll(&next, 1, 50);
        if (waits) show(attended);
        else if (take_shown(attended) < 0) break;
    }
    close(attended->out);
}

/* What earlier scripts left running is not this one's. A line without a script belongs to the present
 * one. */
static void start_script(struct attended *attended, const struct frame *frame, pid_t leader) {
    struct reader reader = reader_of(frame);
    uint32_t size;
    const unsigned char *line = get_bytes(&reader, &size);
    size_t script_size = (size_t)(reader.end - reader.at);
    if (reader.bad) return;
    if (script_size) {
        pid_t itself[1] = {leader}, *spared = attended->spared;
        size_t count = list_descendants(getpid(), spared, MAX_SPARED / 2, itself, 1);
        count += list_descendants(leader, spared + count, MAX_SPARED / 2, NULL, 0);
        attended->spared_count = count;
        if (ftruncate(attended->script, 0) || lseek(attended->script, 0, SEEK_SET) ||
            write_all(attended->script, reader.at, script_size))
            return;
    }
    write_all(attended->trigger, line, size);
}

/* The shell first: it must know of the signal before it sees a child end by it. */
static void interrupt(const struct attended *attended, pid_t leader, int number, int shell_too) {
    pid_t found[MAX_SPARED];
    if (shell_too) kill(leader, number);
    size_t count = list_descendants(getpid(), found, MAX_SPARED, attended->spared,
                                    attended->spared_count);
    for (size_t i = 0; i < count; i++)
        if (found[i] != leader) kill(found[i], number);
}

void attend_message(struct attended *attended, const struct frame *frame, pid_t leader) {
    struct reader reader = reader_of(frame);
    if (frame->type == REQ_SCRIPT && attended->script >= 0) {
        start_script(attended, frame, leader);
        return;
    }
    uint32_t first = get_u32(&reader), second = get_u32(&reader);
    if (reader.bad) return;
    if (frame->type == REQ_RESIZE && attended->master >= 0)
        set_size(attended->master, (uint16_t)first, (uint16_t)second);
    if (frame->type == REQ_INTERRUPT && attended->script >= 0 && first > 0 && first < 65)
        interrupt(attended, leader, (int)first, (second & INTERRUPT_THE_SHELL) != 0);
}
