#!/bin/bash
sed -i 's/os.listdir(source)/sorted(os.listdir(source))/' /app/build.py
