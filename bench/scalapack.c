/* Solves A·X = B by ScaLAPACK's pdgetrf and pdgetrs: the peer of `python -m bench.scalapack`.

   scalapack A B X N NRHS NB P Q: A and B are raw files of float64, column-major; X is written in the
   same form. Rank 0 prints seconds of reading, factorisation and substitution. */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void Cblacs_get(int, int, int *);
extern void Cblacs_gridinit(int *, const char *, int, int);
extern void Cblacs_gridinfo(int, int *, int *, int *, int *);
extern int numroc_(const int *, const int *, const int *, const int *, const int *);
extern void descinit_(int *, const int *, const int *, const int *, const int *, const int *,
                      const int *, const int *, const int *, int *);
extern void pdgetrf_(const int *, const int *, double *, const int *, const int *, const int *,
                     int *, int *);
extern void pdgetrs_(const char *, const int *, const int *, const double *, const int *,
                     const int *, const int *, const int *, double *, const int *, const int *,
                     const int *, int *);

typedef ssize_t (*transfer)(int, void *, size_t, off_t);

static ssize_t put(int file, void *from, size_t size, off_t at) {
  return pwrite(file, from, size, at);
}

static void fail(const char *what) {
  perror(what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Transfers this process's blocks of n rows and some columns between a file and local columns. */
static void move(const char *path, int flags, transfer action, double *local, int lead, int n,
                 int columns, int nb, const int *grid, const int *place) {
  int file = open(path, flags, 0666);
  if (file < 0) fail(path);
  for (int column = 0, j = 0; column < columns; column++) {
    if (column / nb % grid[1] != place[1]) continue;
    double *target = local + (size_t)lead * j++;
    for (int row = place[0] * nb; row < n; row += nb * grid[0]) {
      size_t size = sizeof(double) * (row + nb < n ? nb : n - row);
      off_t at = sizeof(double) * ((off_t)column * n + row);
      if (action(file, target, size, at) != (ssize_t)size) fail(path);
      target += nb;
    }
  }
  close(file);
}

int main(int count, char **words) {
  MPI_Init(&count, &words);
  if (count != 9) {
    fprintf(stderr, "usage: scalapack A B X N NRHS NB P Q\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int n = atoi(words[4]), columns = atoi(words[5]), nb = atoi(words[6]);
  int grid[] = {atoi(words[7]), atoi(words[8])}, place[2], zero = 0, one = 1, context, info;
  Cblacs_get(-1, 0, &context);
  Cblacs_gridinit(&context, "Row", grid[0], grid[1]);
  Cblacs_gridinfo(context, &grid[0], &grid[1], &place[0], &place[1]);
  int rows = numroc_(&n, &nb, &place[0], &zero, &grid[0]), lead = rows > 1 ? rows : 1;
  int own = numroc_(&n, &nb, &place[1], &zero, &grid[1]);
  int right = numroc_(&columns, &nb, &place[1], &zero, &grid[1]);
  int a_is[9], b_is[9];
  descinit_(a_is, &n, &n, &nb, &nb, &zero, &zero, &context, &lead, &info);
  descinit_(b_is, &n, &columns, &nb, &nb, &zero, &zero, &context, &lead, &info);
  double *a = malloc(sizeof(double) * lead * (size_t)(own + 1));
  double *b = malloc(sizeof(double) * lead * (size_t)(right + 1));
  int *pivots = malloc(sizeof(int) * (rows + nb));
  if (!a || !b || !pivots) fail("malloc");
  double begin = MPI_Wtime();
  move(words[1], O_RDONLY, pread, a, lead, n, n, nb, grid, place);
  move(words[2], O_RDONLY, pread, b, lead, n, columns, nb, grid, place);
  MPI_Barrier(MPI_COMM_WORLD);
  double loaded = MPI_Wtime();
  pdgetrf_(&n, &n, a, &one, &one, a_is, pivots, &info);
  MPI_Barrier(MPI_COMM_WORLD);
  double factored = MPI_Wtime();
  if (info == 0)
    pdgetrs_("N", &n, &columns, a, &one, &one, a_is, pivots, b, &one, &one, b_is, &info);
  MPI_Barrier(MPI_COMM_WORLD);
  double solved = MPI_Wtime();
  move(words[3], O_WRONLY | O_CREAT, put, b, lead, n, columns, nb, grid, place);
  MPI_Barrier(MPI_COMM_WORLD);
  if (place[0] == 0 && place[1] == 0)
    printf("{\"info\": %d, \"read\": %.6f, \"factor\": %.6f, \"solve\": %.6f}\n", info,
           loaded - begin, factored - loaded, solved - factored);
  MPI_Finalize();
  return info != 0;
}
