#!/bin/sh
# usage: sh bench/figures.sh RESULTS FIGURES
# Draws PNG files into the folder FIGURES from what the programs printed into the folder RESULTS, each that is there:
#   step.txt (step), gemm.txt (gemm), threads.txt (threads), length.txt (length), tokenizer.txt (tokenizer),
#   pytorch.txt (against_pytorch.py)
# for example:  build/bench/threads > results/threads.txt
results=${1:?usage: figures.sh RESULTS FIGURES} figures=${2:?usage: figures.sh RESULTS FIGURES}
command -v gnuplot >/dev/null || { echo "gnuplot is missing: apt-get install gnuplot-nox" >&2; exit 1; }
mkdir -p "$figures" || exit 1
drawn=0

# draw NAME HEIGHT: gnuplot's commands come from standard input; `data` is the file.
draw() {
    [ -s "$results/$1.txt" ] || { cat >/dev/null; echo "no $results/$1.txt"; return; }
    {
        echo "set terminal pngcairo size 900,$2 font 'sans,11' background rgb 'white'"
        echo "set output '$figures/$1.png'; data = '$results/$1.txt'"
        echo "set style fill solid 0.85 border -1; set boxwidth 0.8; set grid ytics lc rgb '#dddddd'"
        echo "set border 3; set tics nomirror"
        echo "blue = '#2b6cb0'; orange = '#dd8452'; grey = '#999999'"
        cat
    } | gnuplot && drawn=$((drawn + 1)) && echo "$figures/$1.png"
}

draw pytorch 420 <<'PLOT'
set title 'DistilBERT training on the same CPU: samples per second'
set style data histogram; set style histogram clustered gap 1
set yrange [0:*]; set key top left; set xtics rotate by 15 right
plot data index 0 using 2:xtic(1) title 'accel.h' lc rgb blue, '' index 0 using 4 title 'PyTorch' lc rgb grey, \
     '' index 0 using ($0-0.2):2:(sprintf('%.1fx', $6)) with labels offset 0,0.7 notitle
PLOT

draw step 520 <<'PLOT'
set title 'Where the time of a training step goes'
set ylabel '% of the step'; set yrange [0:*]; set xtics rotate by 40 right; unset key
plot data using 0:3:xtic(1) with boxes lc rgb blue
PLOT

draw gemm 520 <<'PLOT'
set title 'Matrix products of DistilBERT-base: share of the processor''s limit'
set ylabel '%'; set yrange [0:115]; set style data histogram; set style histogram clustered gap 1
set xtics rotate by 60 right font ',8'; set key top right
plot data using 4:xtic(sprintf('%s, %d', strcol(1), $2)) title 'fp32' lc rgb blue, '' using 6 title 'bf16' lc rgb orange
PLOT

draw threads 420 <<'PLOT'
set title 'Training step: gain over one thread'
set xlabel 'threads'; set ylabel 'gain'; set xrange [0.8:*]; set yrange [0:*]; set xtics 1; set key top left
plot x with lines dashtype 2 lc rgb grey title 'ideal', data using 1:3 with linespoints pt 7 lc rgb blue title 'fp32', \
     '' using 1:7 with linespoints pt 7 lc rgb orange title 'bf16'
PLOT

draw length 420 <<'PLOT'
set title 'Cost of a token in a training step'
set xlabel 'tokens of a text'; set ylabel 'microseconds per token'; set logscale xy; set key top right
set xrange [8:512]; set xtics (8,16,32,64,128,256,512)
plot for [i=0:3] data index i using 1:5 with linespoints pt 7 title sprintf('batch %d', 4**i)
PLOT

draw tokenizer 420 <<'PLOT'
set title 'Tokenizer: million tokens per second'
set xlabel 'threads'; set yrange [0:*]; set xrange [0.4:*]; set xtics 1; unset key
plot data using 1:2 with boxes lc rgb blue
PLOT

[ "$drawn" -gt 0 ]
