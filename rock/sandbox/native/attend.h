/* What a supervisor does for a terminal or a shell besides waiting for it. */
#ifndef ROCK_ATTEND_H
#define ROCK_ATTEND_H

#include "account.h"
#include "wire.h"

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_SPARED 1024
#define ATTENDED_POLLS 3
struct attended {
    int terminal, master; /* the two ends of a terminal, or NO_FD */
    int in, out;          /* the client's pipes to and from the terminal; NO_FD when closed */
    unsigned char typed[4096], shown[65536];
    size_t typed_from, typed_to, shown_from, shown_to;
    int script, script_out, trigger; /* a shell's script, its read-only end, and what starts it */
    pid_t spared[MAX_SPARED]; /* what earlier scripts of the shell left running */
    size_t spared_count;
};
int open_terminal(struct attended *attended, const int stdio[3], const struct account *owner,
                  uint16_t rows, uint16_t columns);
int take_terminal(const struct attended *attended); /* in the command: it becomes its terminal */
int open_script(struct attended *attended, int *program);
int take_script(const struct attended *attended, int status);
void close_given(const int stdio[3], int status);
size_t attend_polls(const struct attended *attended, struct pollfd *polls);
void attend_terminal(struct attended *attended, const struct pollfd *polls);
void attend_message(struct attended *attended, const struct frame *frame, pid_t leader);
void drain_terminal(struct attended *attended);

#endif
