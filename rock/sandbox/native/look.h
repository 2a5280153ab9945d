/* Which processes there are. */
#ifndef ROCK_LOOK_H
#define ROCK_LOOK_H

#include "wire.h"

int handle_look(int conn, const struct frame *frame);

#endif
