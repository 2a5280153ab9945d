/* One command, from its request to how it ended. */
#ifndef ROCK_EXEC_H
#define ROCK_EXEC_H

#include "wire.h"

int handle_exec(int conn, const struct frame *frame);

#endif
