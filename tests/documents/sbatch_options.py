"""The long options that Slurm's sbatch knows, as its manual page lists them (24.11, a few newer and
older ones beside).

Source: https://slurm.schedmd.com/sbatch.html
"""

_NAMES = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
dependency distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid gpu-bind
gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name
kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice
no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
oom-kill-step open-mode output overcommit oversubscribe parsable partition power prefer priority profile propagate
qos quiet reboot requeue reservation resv-ports segment signal sockets-per-node spread-job stepmgr switches
test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose
version wait wait-all-nodes wckey wrap
"""
SBATCH_OPTIONS = frozenset(_NAMES.split())
