/* The rootless sandbox. */
#ifndef ROCK_BOX_H
#define ROCK_BOX_H

#include "serve.h"

int run_local(int spec_fd, int control, answering *answer);

#endif
