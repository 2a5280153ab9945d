/* One command: a supervisor that starts it, bounds it, ends all of it, and reports how it ended.
 *
 * A terminal and a shell that takes scripts are commands too; what only they need is in attend.c. */
#define _GNU_SOURCE
#include "exec.h"

#include "account.h"
#include "attend.h"
#include "harden.h"
#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FLAG_STDIN 1u
#define FLAG_TERMINAL 2u
#define FLAG_SHELL 4u
#define FLAG_ANNOUNCE 8u
#define KILL_BOUND_NS (10 * (int64_t)1000000000)

struct limit {
    uint32_t resource;
    uint64_t value;
};
struct command {
    uint32_t timeout_ms;
    struct account account;
    char *cwd, **argv, **env;
    struct limit limits[16];
    uint32_t limit_count;
    uint32_t flags;
    uint16_t rows, columns;
    int stdio[3];
    int status; /* of a shell: where it says how each script ended */
};
struct failure {
    int stage, error;
};

static int parse(const struct frame *frame, struct command *command, int *user_error) {
    struct reader reader = reader_of(frame);
    uint32_t argc, envc;
    command->timeout_ms = get_u32(&reader);
    command->flags = get_u32(&reader);
    char *user = get_text(&reader);
    command->cwd = get_text(&reader);
    command->argv = get_texts(&reader, &argc);
    command->env = get_texts(&reader, &envc);
    command->limit_count = get_u32(&reader);
    if (command->limit_count > 16) return -1;
    for (uint32_t i = 0; i < command->limit_count; i++) {
        command->limits[i].resource = get_u32(&reader);
        command->limits[i].value = get_u64(&reader);
    }
    command->rows = (uint16_t)get_u32(&reader);
    command->columns = (uint16_t)get_u32(&reader);
    int has_stdin = (command->flags & FLAG_STDIN) != 0, is_shell = command->flags & FLAG_SHELL;
    int want = 2 + has_stdin + (is_shell ? 1 : 0);
    if (reader.bad || !argc || !command->argv[0][0] || frame->fd_count != want) return -1;
    if (is_shell ? command->flags & (FLAG_STDIN | FLAG_TERMINAL) : command->flags & FLAG_TERMINAL && !has_stdin)
        return -1;
    command->stdio[0] = has_stdin ? frame->fds[0] : open("/dev/null", O_RDONLY | O_CLOEXEC);
    command->stdio[1] = frame->fds[has_stdin];
    command->stdio[2] = frame->fds[has_stdin + 1];
    command->status = is_shell ? frame->fds[2] : NO_FD;
    *user_error = find_account(user, &command->account);
    return 0;
}

static void set_limits(const struct command *command) {
    for (uint32_t i = 0; i < command->limit_count; i++) {
        struct rlimit limit;
        int resource = (int)command->limits[i].resource;
        if (getrlimit(resource, &limit)) continue;
        rlim_t value = (rlim_t)command->limits[i].value;
        if (value > limit.rlim_max) value = limit.rlim_max; /* never above what the box has */
        limit.rlim_cur = limit.rlim_max = value;
        setrlimit(resource, &limit);
    }
}

/* execve along PATH of the command's own environment. Never a shell for a file without a header. */
static int execute(const struct command *command) {
    const char *program = command->argv[0], *path = "/usr/local/bin:/usr/bin:/bin";
    int error = ENOENT;
    if (strchr(program, '/')) {
        execve(program, command->argv, command->env);
        return errno;
    }
    for (char **entry = command->env; *entry; entry++)
        if (!strncmp(*entry, "PATH=", 5)) path = *entry + 5;
    while (*path) {
        size_t size = strcspn(path, ":");
        char *full = malloc(size + strlen(program) + 2);
        if (!full) return ENOMEM;
        memcpy(full, path, size);
        full[size] = '/';
        strcpy(full + size + 1, program);
        if (size) execve(full, command->argv, command->env);
        if (size && errno != ENOENT && errno != ENOTDIR) {
            error = errno;
            if (error != EACCES) return error;
        }
        path += size + (path[size] == ':');
    }
    return error;
}

/* By system call: the C library keeps two signals to itself and would leave them ignored. */
static void default_signals(void) {
    struct {
        void *handler, *flags, *restorer;
        uint64_t mask;
    } by_default = {0};
    for (int number = 1; number <= 64; number++)
        syscall(SYS_rt_sigaction, number, &by_default, NULL, sizeof by_default.mask);
}

static struct failure start(const struct command *command, const struct attended *attended) {
    sigset_t none;
    int error;
    setsid();
    if (attended->terminal >= 0) {
        if (take_terminal(attended)) return (struct failure){STAGE_PROCESS, errno};
    } else
        for (int i = 0; i < 3; i++)
            if (dup2(command->stdio[i], i) < 0) return (struct failure){STAGE_PROCESS, errno};
    if (attended->script >= 0 && take_script(attended, command->status))
        return (struct failure){STAGE_PROCESS, errno};
    umask(022);
    set_limits(command);
    drop_bounding_set();
    if ((error = become_account(&command->account))) return (struct failure){STAGE_USER, error};
    if (chdir(command->cwd)) return (struct failure){STAGE_CWD, errno};
    if ((error = drop_privileges())) return (struct failure){STAGE_PROCESS, error};
    default_signals();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return (struct failure){STAGE_PROGRAM, execute(command)};
}

/* Takes one message of the client; true if the command must end. */
static int client_wants_end(int conn, pid_t leader, struct attended *attended) {
    struct frame frame;
    if (read_frame(conn, &frame) <= 0 || frame.type == REQ_KILL) return 1;
    if (frame.type == REQ_SIGNAL) {
        struct reader reader = reader_of(&frame);
        uint32_t number = get_u32(&reader);
        if (!reader.bad && number > 0 && number < 65) kill(leader, (int)number);
    } else
        attend_message(attended, &frame, leader);
    free(frame.body);
    return 0;
}

static int reap_until(pid_t leader, int *status) {
    int got;
    pid_t pid;
    while ((pid = waitpid(-1, &got, WNOHANG)) > 0) {
        if (pid == leader) {
            *status = got;
            return 1;
        }
    }
    return 0;
}

/* Waits for the leader, the client or the deadline, whichever comes first; 0: the leader ended. */
static enum end_kind watch(int conn, int signals, pid_t leader, int64_t deadline, int *status,
                           struct attended *attended) {
    struct pollfd polls[2 + ATTENDED_POLLS] = {{conn, POLLIN, 0}, {signals, POLLIN, 0}};
    for (;;) {
        nfds_t count = 2 + attend_polls(attended, polls + 2);
        int64_t left_ns = deadline - now_ns();
        if (left_ns <= 0) return END_TIMED_OUT;
        int64_t left_ms = left_ns / 1000000 + 1;
        poll(polls, count, left_ms > 3600000 ? 3600000 : (int)left_ms);
        if (polls[1].revents) {
            struct signalfd_siginfo info;
            while (read(signals, &info, sizeof info) > 0) continue;
            if (reap_until(leader, status)) return 0;
        }
        if (count > 2) attend_terminal(attended, polls + 2);
        if (polls[0].revents && client_wants_end(conn, leader, attended)) return END_KILLED;
    }
}

static int report(int conn, enum end_kind kind, int status, int64_t started, long long ooms,
                  int leftovers) {
    struct writer writer = {.size = 0};
    uint32_t value = 0;
    if (!kind) {
        kind = WIFEXITED(status) ? END_EXITED : END_SIGNALED;
        value = (uint32_t)(WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    long long after = ooms < 0 ? -1 : oom_kills();
    put_u8(&writer, (uint8_t)kind);
    put_u32(&writer, value);
    put_u64(&writer, (uint64_t)(now_ns() - started));
    put_u32(&writer, after < 0 ? 0xffffffffu : (uint32_t)(after - ooms));
    put_u8(&writer, (uint8_t)leftovers);
    if (send_frame(conn, REP_RESULT, writer.bytes, writer.size, NO_FD)) return 1;
    return leftovers; /* an exit code of 1 makes PID 1 look for orphans */
}

/* Waits until the program runs, which closes the pipe, or says why it cannot; tells the client. */
static ssize_t announce(int conn, int trouble, pid_t leader, struct failure *failed) {
    struct writer writer = {.size = 0};
    ssize_t told;
    while ((told = read(trouble, failed, sizeof *failed)) < 0 && errno == EINTR) continue;
    if (told) return told;
    put_u32(&writer, (uint32_t)leader);
    send_frame(conn, REP_STARTED, writer.bytes, writer.size, NO_FD);
    return 0;
}

static int child_signals(void) {
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    return signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
}

int handle_exec(int conn, const struct frame *frame) {
    struct command command = {.status = NO_FD};
    struct attended attended = {.terminal = NO_FD, .master = NO_FD, .script = NO_FD};
    struct failure failed;
    int user_error = 0, trouble[2], status = 0;
    if (parse(frame, &command, &user_error))
        return reply_error(conn, STAGE_REQUEST, EINVAL, "malformed exec request") ? 1 : 0;
    if (user_error) return reply_error(conn, STAGE_USER, user_error, "no such user") ? 1 : 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int signals = child_signals();
    if (signals < 0 || pipe2(trouble, O_CLOEXEC))
        return reply_error(conn, STAGE_PROCESS, errno, "out of descriptors") ? 1 : 0;
    if (command.flags & FLAG_TERMINAL &&
        open_terminal(&attended, command.stdio, &command.account, command.rows, command.columns))
        return reply_error(conn, STAGE_PROCESS, errno, "no terminal") ? 1 : 0;
    if (command.flags & FLAG_SHELL && open_script(&attended, &command.stdio[0]))
        return reply_error(conn, STAGE_PROCESS, errno, "no memory for scripts") ? 1 : 0;
    long long ooms = oom_kills();
    int64_t started = now_ns();
    pid_t leader = fork();
    if (leader == 0) {
        failed = start(&command, &attended);
        write_all(trouble[1], &failed, sizeof failed);
        _exit(127);
    }
    int fork_error = errno;
    close(trouble[1]);
    close_given(command.stdio, command.status);
    if (leader < 0)
        return reply_error(conn, STAGE_PROCESS, fork_error, "cannot start a process") ? 1 : 0;
    int64_t deadline = started + (int64_t)command.timeout_ms * 1000000;
    ssize_t told = command.flags & FLAG_ANNOUNCE ? announce(conn, trouble[0], leader, &failed) : 0;
    enum end_kind kind = watch(conn, signals, leader, deadline, &status, &attended);
    int leftovers = end_descendants(KILL_BOUND_NS, leader, &status);
    drain_terminal(&attended);
    fcntl(trouble[0], F_SETFL, O_NONBLOCK);
    if (!told) told = read(trouble[0], &failed, sizeof failed);
    if (told == (ssize_t)sizeof failed)
        return reply_error(conn, failed.stage, failed.error, strerror(failed.error)) ? 1 : 0;
    return report(conn, kind, status, started, ooms, leftovers);
}
