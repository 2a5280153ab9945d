/* rock-init: PID 1 of every sandbox. */
int main(void) { return 0; }
